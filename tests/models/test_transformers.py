"""The whole of BERT against the PyTorch model of transformers, with the same weights."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bertjax.interop import bert, names
from bertjax.models import vocabulary
from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests import batches

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG = batches.ENCODER


@pytest.fixture(scope="module")
def published():
    """A BERT of random weights, its biases and norms too, so that each of them matters."""
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.width,
            num_hidden_layers=CONFIG.layers,
            num_attention_heads=CONFIG.heads,
            intermediate_size=CONFIG.feedforward,
            max_position_embeddings=CONFIG.max_positions,
            hidden_act="gelu",
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def bertjax_params(model) -> dict:
    family = bert.BERT
    tensors = family.canonical({name: tensor.detach().numpy() for name, tensor in model.state_dict().items()})
    flat = names.to_params(tensors, family.names(CONFIG, frozenset(family.parts)), family.shapes(CONFIG))
    return vocabulary.pad(unflatten_dict(flat, sep="/"), CONFIG)


def test_logits_are_those_of_transformers(published):
    batch = batches.make(4)
    with torch.no_grad():
        expected = published(
            input_ids=torch.tensor(batch["tokens_BT"]),
            attention_mask=torch.tensor(batch["examples_BT"]),
            token_type_ids=torch.tensor(batch["segments_BT"]),
        )
    logits = jax.jit(functools.partial(BERT().apply, BERT().model(CONFIG)))(bertjax_params(published), batch)
    read_BK1 = batch["mlm_positions_BK"][..., None]
    expected_mlm = np.take_along_axis(expected.prediction_logits.numpy(), read_BK1, axis=1)
    np.testing.assert_allclose(logits["mlm"][..., : CONFIG.vocab_size], expected_mlm, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits["nsp"][:, 0], expected.seq_relationship_logits.numpy(), rtol=1e-5, atol=1e-5)
