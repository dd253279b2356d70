"""Relatives of BERT against the PyTorch models of transformers, with the same weights."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bertjax.interop.names import Name, dense, norm
from bertjax.models import vocabulary
from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.sentence_pairs import SentenceOrderPrediction
from tests import batches

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 100, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 16}
SMALL |= {"dropout": 0.0, "attention_dropout": 0.0}


def small(preset: str, **sizes) -> EncoderConfig:
    return dataclasses.replace(PRESETS[preset], **SMALL | sizes)


def randomized(model):
    """Biases and norms are random, too, so that each of them matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def params_of(model, names: list[Name], config: EncoderConfig, groups: int = 1) -> dict:
    """Params by a table, `{layer}` in it a row of the stack."""
    tensors, flat = {name: tensor.numpy() for name, tensor in model.state_dict().items()}, {}
    for name in names:
        rows = groups if "{layer}" in name.theirs else 1
        layers = [tensors[name.theirs.replace("{layer}", str(row))] for row in range(rows)]
        layers = [tensor.T if name.transposed else tensor for tensor in layers]
        flat[name.ours] = np.stack(layers) if "{layer}" in name.theirs else layers[0]
    return vocabulary.pad(unflatten_dict(flat, sep="/"), config)


_ROW = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0"
ALBERT = [
    Name("albert.embeddings.word_embeddings.weight", "encoder/embeddings/word"),
    Name("albert.embeddings.position_embeddings.weight", "encoder/embeddings/position"),
    Name("albert.embeddings.token_type_embeddings.weight", "encoder/embeddings/segment"),
    *norm("albert.embeddings.LayerNorm", "encoder/embeddings/norm"),
    *dense("albert.encoder.embedding_hidden_mapping_in", "encoder/projection"),
    *dense(f"{_ROW}.attention.query", "encoder/layers/attention/query"),
    *dense(f"{_ROW}.attention.key", "encoder/layers/attention/key"),
    *dense(f"{_ROW}.attention.value", "encoder/layers/attention/value"),
    *dense(f"{_ROW}.attention.dense", "encoder/layers/attention/output"),
    *norm(f"{_ROW}.attention.LayerNorm", "encoder/layers/attention_norm"),
    *dense(f"{_ROW}.ffn", "encoder/layers/intermediate"),
    *dense(f"{_ROW}.ffn_output", "encoder/layers/output"),
    *norm(f"{_ROW}.full_layer_layer_norm", "encoder/layers/output_norm"),
    *dense("albert.pooler", "encoder/pooler"),
    *dense("predictions.dense", "heads/mlm/transform"),
    *norm("predictions.LayerNorm", "heads/mlm/norm"),
    Name("predictions.bias", "heads/mlm/word_bias"),
    *dense("sop_classifier.classifier", "heads/sop/classifier"),
]


@pytest.mark.parametrize("groups", [1, 2])
def test_albert_equals_that_of_transformers(groups):
    config, batch = small("albert_base", layers=4, embeddings=BertEmbeddings(8), sharing_groups=groups), batches.make(4)
    torch.manual_seed(0)
    model = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(
            vocab_size=100,
            embedding_size=8,
            hidden_size=16,
            num_hidden_layers=4,
            num_hidden_groups=groups,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=16,
            hidden_act="gelu_new",
        )  # fmt: skip
    )
    params = params_of(randomized(model), ALBERT, config, groups)
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor(batch["tokens_BT"]),
            attention_mask=torch.tensor(batch["examples_BT"]),
            token_type_ids=torch.tensor(batch["segments_BT"]),
        )
    logits = jax.jit(functools.partial(SentenceOrderPrediction().apply, SentenceOrderPrediction().model(config)))(
        params, batch
    )
    expected_mlm = np.take_along_axis(expected.prediction_logits.numpy(), batch["mlm_positions_BK"][..., None], axis=1)
    np.testing.assert_allclose(logits["mlm"][..., :100], expected_mlm, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits["sop"][:, 0], expected.sop_logits.numpy(), rtol=1e-5, atol=1e-5)


_LAYER = "encoder.layer.{layer}"
ROBERTA = [
    Name("embeddings.word_embeddings.weight", "embeddings/word"),
    Name("embeddings.position_embeddings.weight", "embeddings/position"),
    *norm("embeddings.LayerNorm", "embeddings/norm"),
    *dense(f"{_LAYER}.attention.self.query", "layers/attention/query"),
    *dense(f"{_LAYER}.attention.self.key", "layers/attention/key"),
    *dense(f"{_LAYER}.attention.self.value", "layers/attention/value"),
    *dense(f"{_LAYER}.attention.output.dense", "layers/attention/output"),
    *norm(f"{_LAYER}.attention.output.LayerNorm", "layers/attention_norm"),
    *dense(f"{_LAYER}.intermediate.dense", "layers/intermediate"),
    *dense(f"{_LAYER}.output.dense", "layers/output"),
    *norm(f"{_LAYER}.output.LayerNorm", "layers/output_norm"),
]


def test_roberta_equals_that_of_transformers():
    config, batch = small("roberta_base", layers=2), batches.make(4)
    torch.manual_seed(0)
    model = transformers.RobertaModel(
        transformers.RobertaConfig(
            vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=18, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5,
        ),
        add_pooling_layer=False,
    )  # fmt: skip
    randomized(model)
    with torch.no_grad():
        model.embeddings.token_type_embeddings.weight.zero_()  # the published model has no segments
        tokens_BT = np.where(batch["examples_BT"] > 0, batch["tokens_BT"], 1)
        mask = torch.tensor(batch["examples_BT"])
        expected_BTD = model(input_ids=torch.tensor(tokens_BT), attention_mask=mask).last_hidden_state.numpy()
    encoded = jax.jit(Encoder(config).apply)(
        {"params": params_of(model, ROBERTA, config, 2)}, tokens_BT, examples_BT=batch["examples_BT"]
    )
    real_BT = batch["examples_BT"] > 0
    np.testing.assert_allclose(encoded.hidden[real_BT], expected_BTD[real_BT], rtol=1e-5, atol=1e-5)
