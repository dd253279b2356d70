"""The table of BERT: names, shapes and keys, and the errors for checkpoints that do not fit."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.interop import families, huggingface, names, weights
from bertjax.interop.bert import FAMILY
from bertjax.models.config import EncoderConfig
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from tests import batches
from tests.interop import models

# From transformers' modeling_bert.py, with one layer.
THEIRS = """
bert.embeddings.word_embeddings.weight 60 16
bert.embeddings.position_embeddings.weight 20 16
bert.embeddings.token_type_embeddings.weight 3 16
bert.embeddings.LayerNorm.weight 16
bert.embeddings.LayerNorm.bias 16
bert.encoder.layer.0.attention.self.query.weight 16 16
bert.encoder.layer.0.attention.self.query.bias 16
bert.encoder.layer.0.attention.self.key.weight 16 16
bert.encoder.layer.0.attention.self.key.bias 16
bert.encoder.layer.0.attention.self.value.weight 16 16
bert.encoder.layer.0.attention.self.value.bias 16
bert.encoder.layer.0.attention.output.dense.weight 16 16
bert.encoder.layer.0.attention.output.dense.bias 16
bert.encoder.layer.0.attention.output.LayerNorm.weight 16
bert.encoder.layer.0.attention.output.LayerNorm.bias 16
bert.encoder.layer.0.intermediate.dense.weight 24 16
bert.encoder.layer.0.intermediate.dense.bias 24
bert.encoder.layer.0.output.dense.weight 16 24
bert.encoder.layer.0.output.dense.bias 16
bert.encoder.layer.0.output.LayerNorm.weight 16
bert.encoder.layer.0.output.LayerNorm.bias 16
bert.pooler.dense.weight 16 16
bert.pooler.dense.bias 16
cls.predictions.transform.dense.weight 16 16
cls.predictions.transform.dense.bias 16
cls.predictions.transform.LayerNorm.weight 16
cls.predictions.transform.LayerNorm.bias 16
cls.predictions.bias 60
cls.seq_relationship.weight 2 16
cls.seq_relationship.bias 2
"""


def encoder_config(config: dict) -> EncoderConfig:
    return families.of_config(config).encoder_config(config)


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


@pytest.fixture
def folder(tokens, tmp_path):
    """A whole checkpoint."""
    huggingface.write(tmp_path, models.make(models.PARTS["BertForPreTraining"], tokens))
    return tmp_path


def change(folder, **tensors):
    """Write a checkpoint again with other tensors; None removes a tensor."""
    changed = {name: np.array(tensor) for name, tensor in weights.read(folder).items()} | tensors
    weights.write(
        folder / "model.safetensors", {name: tensor for name, tensor in changed.items() if tensor is not None}
    )


def test_names_and_shapes_are_those_of_transformers(folder):
    lines = (line.split() for line in THEIRS.strip().splitlines())
    expected = {name: tuple(map(int, shape)) for name, *shape in lines}
    second = {name.replace(".0.", ".1."): shape for name, shape in expected.items()}
    assert {name: tensor.shape for name, tensor in weights.read(folder).items()} == expected | second


def test_the_table_covers_the_whole_of_bert():
    ours = flatten_dict(batches.param_shapes(BERT(), batches.ENCODER), sep="/")
    assert {name.ours for name in FAMILY.names(batches.ENCODER, frozenset({"pooler", "mlm", "nsp"}))} == ours.keys()
    padded = dataclasses.replace(batches.ENCODER, vocab_size=batches.ENCODER.padded_vocab_size)
    shapes = {path: shape for path, shape in FAMILY.shapes(padded).items() if not path.startswith("heads/clm/")}
    assert shapes == {path: leaf.shape for path, leaf in ours.items()}


@pytest.mark.parametrize("architecture, parts", models.PARTS.items())
def test_a_round_trip_restores_the_export(tokens, tmp_path, architecture, parts):
    original = models.make(parts, tokens)
    huggingface.write(tmp_path, original)
    restored, _ = huggingface.read(tmp_path)
    assert (restored.encoder, restored.settings, restored.tokenizer) == (
        original.encoder,
        original.settings,
        original.tokenizer,
    )
    assert jax.tree.structure(restored.params) == jax.tree.structure(original.params)
    rows = original.encoder.vocab_size
    for (path, leaf), other in zip(flatten_dict(original.params, sep="/").items(), jax.tree.leaves(restored.params)):
        real = slice(rows) if path.rpartition("/")[2].startswith("word") else slice(None)
        np.testing.assert_array_equal(leaf[real], flatten_dict(restored.params, sep="/")[path][real])
        assert other.dtype == np.float32
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]


def test_a_model_that_reads_from_left_to_right_needs_its_head(tokens, tmp_path):
    made = models.make(frozenset({"clm"}), tokens)
    huggingface.write(tmp_path, made)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["is_decoder"] is True and config["architectures"] == ["BertLMHeadModel"]
    with pytest.raises(UserError, match="left_to_right.* and no head 'clm'.* only as BertLMHeadModel"):
        huggingface.write(tmp_path, made._replace(params={"encoder": made.params["encoder"]}))
    weights.write(tmp_path / "model.safetensors", {"bert.pooler.dense.bias": np.zeros(16, np.float32)})
    with pytest.raises(UserError, match="^config.json has is_decoder=True; .* only as BertLMHeadModel"):
        huggingface.read(tmp_path)


def test_an_unused_pooler_is_not_exported_and_a_note_reports_it(tokens, tmp_path):
    notes = huggingface.write(tmp_path, models.make(frozenset({"mlm", "pooler"}), tokens))
    assert any("pooler not exported" in note for note in notes)
    assert not any("pooler" in name for name in weights.read(tmp_path))
    restored, notes = huggingface.read(tmp_path)
    assert "pooler" not in restored.params["encoder"] and "no pooler: pooled_BND is None" in notes


def test_a_head_without_a_name_there_is_an_error(tokens, tmp_path):
    made = models.make(models.PARTS["BertForPreTraining"], tokens)
    made.params["heads"]["structure"] = made.params["heads"].pop("nsp")
    with pytest.raises(UserError, match="no name for: heads/structure/classifier/bias, heads/structure/classifier/ke"):
        huggingface.write(tmp_path, made)
    assert not list(tmp_path.iterdir())


def test_old_names_copies_and_buffers_are_known(tokens, folder):
    before, _ = huggingface.read(folder)
    tensors = weights.read(folder)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    assert len(old.keys() - tensors.keys()) == 12
    old["bert.embeddings.position_ids"] = np.arange(20)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    weights.write(folder / "model.safetensors", old)
    after, _ = huggingface.read(folder)
    assert all(map(np.array_equal, jax.tree.leaves(before.params), jax.tree.leaves(after.params)))


WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    "tensors, complaint",
    [
        ({"bert.pooler.dense.bias": None}, r"the model lacks bert\.pooler\.dense\.bias; bertjax converts no model in"),
        ({"bert.encoder.layer.1.output.dense.bias": None}, r"lacks bert\.encoder\.layer\.1\.output\.dense\.bias"),
        ({"bert.encoder.layer.2.output.dense.bias": np.zeros(16, np.float32)}, "not know: bert.encoder.layer.2.output"),
        ({"classifier.weight": np.zeros(2, np.float32)}, "has names that bertjax does not know: classifier.weight"),
        ({"bert.pooler.dense.weight": np.zeros((16, 8), np.float32)}, r"bert.pooler.dense.weight has shape \[16, 8\]"),
        ({WORDS: np.zeros((61, 16), np.float32)}, rf"{WORDS} has shape \[61, 16\], .* make it \[60, 16\]"),
        ({"bert.pooler.dense.bias": np.zeros(16, np.int64)}, "bert.pooler.dense.bias holds int64; save it as float32"),
        (
            {"cls.predictions.decoder.weight": np.zeros((60, 16), np.float32)},
            "decoder.weight differs from its bert.*; add --encoder-only to convert the encoder alone$",
        ),
        ({"bert.embeddings.position_ids": np.ones((1, 20), np.int64)}, "position_ids does not count from 0"),
        ({"bert.pooler.dense.bias": None, "bert.pooler.dense.weight": None}, "holds mlm, nsp beside its encoder"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, tensors, complaint):
    change(folder, **tensors)
    with pytest.raises(UserError, match=complaint) as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)


def test_the_encoder_of_an_untied_decoder_is_read(folder):
    tied, _ = huggingface.read(folder, encoder_only=True)
    change(folder, **{"cls.predictions.decoder.weight": np.zeros((60, 16), np.float32)})
    untied, _ = huggingface.read(folder, encoder_only=True)
    jax.tree.map(np.testing.assert_array_equal, untied.params, tied.params)


@pytest.mark.parametrize(
    "config, complaint",
    [
        ({"model_type": "t5"}, "config.json has model_type='t5'; bertjax converts bert, albert"),
        ({"model_type": None}, "model_type=None"),
        ({"hidden_act": "silu"}, "hidden_act='silu'; bertjax's BERT computes 'gelu', 'gelu_new', .*'relu' only$"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num=2; bertjax's ALBERT computes 1 only$"),
        ({"type_vocab_size": "2"}, "type_vocab_size='2', which is not a whole number"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads="),
        ({"hidden_size": "large"}, "hidden_size='large', which is not a whole number"),
        ({"hidden_dropout_prob": None}, "hidden_dropout_prob=None, which is not a number"),
        ({"num_attention_heads": 7}, "model.width=768 is not divisible by model.heads=7"),
    ],
)
def test_another_architecture_is_refused(config, complaint):
    with pytest.raises(UserError, match=complaint):
        encoder_config({"model_type": "bert"} | config)


def test_defaults_of_config_json_are_those_of_transformers():
    assert encoder_config({"model_type": "bert"}) == EncoderConfig(vocab_size=30522)
    config = encoder_config({"model_type": "bert", "hidden_dropout_prob": 0, "num_hidden_layers": 3})
    assert (repr(config.dropout), config.layers) == ("0.0", 3)


def test_half_precision_is_widened():
    params = names.to_params({"a": np.ones(2, np.float16)}, [names.Name("a", "b")], {"b": (2,)})
    assert params["b"].dtype == np.float32


def test_a_vocabulary_of_another_size_is_refused(folder, tokens):
    lines = (folder / "vocab.txt").read_text()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text(lines + "extra\n")
    with pytest.raises(UserError, match="has 60 rows of word embeddings and a tokenizer of 61 ids: 'extra' have no"):
        huggingface.read(folder)


@pytest.mark.parametrize("setting, value", [("sharing", "attention"), ("embeddings.segments", 0)])
def test_models_that_no_family_computes_are_not_written(setting, value, tokens, tmp_path):
    export = models.make(models.PARTS["BertModel"], tokens)
    export = export._replace(encoder=export.encoder.replace({setting: value}))
    with pytest.raises(UserError, match=f"^the model has model.{setting}={value!r}"):
        huggingface.write(tmp_path / "out", export)
    assert not (tmp_path / "out").exists()


def test_rounding_of_activations_is_left_out_with_a_note(tmp_path, tokens):
    made = models.make(models.PARTS["BertModel"], tokens)
    rounding = made._replace(encoder=dataclasses.replace(made.encoder, activation_bits=8))
    assert any("activations are not rounded to 8 bits there" in note for note in huggingface.write(tmp_path, rounding))
    assert huggingface.read(tmp_path)[0].encoder.activation_bits == 0
