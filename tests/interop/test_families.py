"""Every family of transformers, without transformers: round trips, names, the choice of the family, and refusals."""

import json
import re

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config import export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.interop import families, huggingface, weights
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from tests import batches
from tests.interop import models

SUFFIXES = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "ForSequenceClassification"),
    "tagging": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
FAMILIES = {family.model_type: family for family in families.FAMILIES}
CASES = [(kind, name, parts) for kind, known in models.CLASSES.items() for name, parts in known.items()]
CASES += [
    (
        kind,
        models.STEMS[kind] + SUFFIXES[term] + "Simple" * ((kind, term) == ("xlnet", "span")),
        family.parts_with(term),
    )
    for kind, family in FAMILIES.items()
    for term in family.task_heads
]
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def model_of(tokens, kind: str, *parts: str):
    return models.make(frozenset(parts), tokens, kind)


def test_every_family_is_tested():
    assert models.CLASSES.keys() == models.OWN.keys() == FAMILIES.keys()
    for kind, family in FAMILIES.items():
        pretrained = {family.class_of(parts) for parts in family.suffixes if parts <= family.parts.keys()}
        assert pretrained == models.CLASSES[kind].keys()


@pytest.mark.parametrize("kind, architecture, parts", CASES)
def test_a_round_trip_restores_the_export_and_needs_every_tensor(tokens, tmp_path, kind, architecture, parts):
    original = models.make(parts, tokens, kind)
    notes = huggingface.write(tmp_path, original)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == ([architecture], kind)
    assert notes[0].startswith(f"architecture {architecture}, ") and len(notes) == 1
    restored, notes = huggingface.read(tmp_path)
    assert not [note for note in notes if "does not know" in note]
    assert (restored.encoder, restored.settings) == (original.encoder, original.settings)
    assert restored.tokenizer == original.tokenizer
    assert jax.tree.structure(restored.params) == jax.tree.structure(original.params)
    back = flatten_dict(restored.params, sep="/")
    for path, leaf in flatten_dict(original.params, sep="/").items():
        real = slice(original.encoder.vocab_size) if path.rpartition("/")[2].startswith("word") else slice(None)
        np.testing.assert_array_equal(leaf[real], back[path][real])
        assert back[path].dtype == np.float32
    # The card loads the class that it is.
    card, auto = (tmp_path / "README.md").read_text(), FAMILIES[kind].auto_of(parts)
    code = ", trust_remote_code=True" if kind == "neobert" else ""
    assert f"# {architecture}\n" in card and re.search(rf'model = {auto}.from_pretrained\("[^"]*"{code}\)', card)
    # Neither a tensor less nor one more is read.
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    norms = ("LayerNorm.bias", "layer_norm.bias", "final_norm.weight", "layernorm.weight", "ffn_norm.weight")
    name = next(name for name in tensors if name.endswith(("output.bias", *norms)))
    for changed in ({n: t for n, t in tensors.items() if n != name}, tensors | {"odd.weight": tensors[name]}):
        weights.write(tmp_path / "model.safetensors", changed)
        with pytest.raises(UserError, match=f"the model lacks .*{name}|does not know: .*odd.weight"):
            huggingface.read(tmp_path)


def test_the_lines_for_jax_in_the_card_run_and_hide_padding(tokens, tmp_path, monkeypatch):
    original = model_of(tokens, "eurobert", "mlm")
    huggingface.write(tmp_path, original)
    export.write(tmp_path / "EXPORT", original)
    [lines] = re.findall(r"```python\n(import bertjax\n.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(lines, scope)
    [ids] = tokens.encode(["a sentence"])
    assert scope["examples_BT"].tolist() == [[1] * (len(ids) + 2) + [0] * (14 - len(ids))]
    assert np.isfinite(scope["hidden_BTD"]).all()


# From transformers' modeling_bert.py, with one layer: each has a bias as long as the first number, but for the tables.
THEIRS = """
bert.embeddings.word_embeddings 60 16
bert.embeddings.position_embeddings 20 16
bert.embeddings.token_type_embeddings 3 16
bert.embeddings.LayerNorm 16
bert.encoder.layer.0.attention.self.query 16 16
bert.encoder.layer.0.attention.self.key 16 16
bert.encoder.layer.0.attention.self.value 16 16
bert.encoder.layer.0.attention.output.dense 16 16
bert.encoder.layer.0.attention.output.LayerNorm 16
bert.encoder.layer.0.intermediate.dense 24 16
bert.encoder.layer.0.output.dense 16 24
bert.encoder.layer.0.output.LayerNorm 16
bert.pooler.dense 16 16
cls.predictions.transform.dense 16 16
cls.predictions.transform.LayerNorm 16
cls.seq_relationship 2 16
"""


@pytest.fixture
def folder(tokens, tmp_path):
    """A whole checkpoint of BERT."""
    huggingface.write(tmp_path, models.make(models.PARTS["BertForPreTraining"], tokens))
    return tmp_path


def change(folder, **tensors):
    """Write a checkpoint again with other tensors; None removes a tensor."""
    changed = {name: np.array(tensor) for name, tensor in weights.read(folder).items()} | tensors
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    weights.write(folder / "model.safetensors", kept)


def test_names_and_shapes_are_those_of_transformers(folder):
    expected = {"cls.predictions.bias": (60,)}
    for name, *shape in (line.split() for line in THEIRS.strip().splitlines()):
        expected[f"{name}.weight"] = tuple(map(int, shape))
        if not name.endswith("_embeddings"):
            expected[f"{name}.bias"] = (int(shape[0]),)
    second = {name.replace(".0.", ".1."): shape for name, shape in expected.items()}
    assert {name: tensor.shape for name, tensor in weights.read(folder).items()} == expected | second


# --- the choice of the family


def test_encoders_that_no_family_computes():
    unknown = {name for name, encoder in PRESETS.items() if not families.has_encoder(encoder, pad_id=1)}
    assert unknown == {"fixed_tiny", "ib_bert_large", "bilstm"}


@pytest.mark.parametrize(
    "kind, settings, complaint",
    [
        ("bert", batches.LSTM, "model.block.kind='lstm'"),
        ("bert", {"sharing": "attention"}, "model.sharing='attention', and transformers' BERT"),
        ("bert", {"embeddings.segments": 0}, "model.embeddings.segments=0"),
        ("albert", {"sharing": "attention"}, "model.sharing='attention', and transformers' ALBERT"),
        ("albert", {"embeddings.width": 16}, "model.embeddings.width=16, and transformers' ALBERT"),
        ("electra", {"embeddings.position_offset": 3}, "model.embeddings.position_offset=3, and transformers' ELECTRA"),
        ("distilbert", {"norm_epsilon": 1e-6}, "model.embeddings.segments=0, and transformers' BERT"),
        ("roberta", {"activation": "gelu_tanh"}, "model.activation='gelu_tanh', and transformers' RoBERTa"),
        ("mobilebert", {"embeddings.segments": 0}, "model.embeddings.segments=0, and transformers' MobileBERT"),
        ("mobilebert", {"block.bottlenecked": "none"}, "model.block.bottlenecked='none'"),
        ("mobilebert", {"block.normalization": "layer_norm"}, "model.norm_epsilon=1e-06"),
        ("mobilebert", {"embeddings.width": 16}, "model.embeddings.width=16, and transformers' MobileBERT"),
        ("modernbert", {"block.gated": False}, "model.block.gated=False, and transformers' ModernBERT"),
        ("modernbert", {"embeddings.segments": 2}, "model.embeddings.segments=2, and transformers' ModernBERT"),
        ("eurobert", {"activation": "relu"}, "model.activation='relu', and transformers' EuroBERT"),
        ("neobert", {"block.rotary_base": 5000.0}, "model.block.rotary_base=5000.0, and transformers' NeoBERT"),
        ("neobert", {"block.key_value_heads": 1}, "model.block.key_value_heads=1, and transformers' NeoBERT"),
        ("neobert", {"feedforward": 20}, "model.feedforward=20, and transformers' NeoBERT has a multiple of 8"),
        ("mpnet", {"block.buckets": 16}, "model.block.buckets=16, and transformers' MPNet"),
        ("deberta-v2", {"embeddings.segments": 2}, "model.embeddings.segments=2, and transformers' DeBERTa-v3"),
    ],
)
def test_the_error_for_a_model_of_no_family_names_the_setting(tokens, tmp_path, kind, settings, complaint):
    made = model_of(tokens, kind)
    with pytest.raises(UserError, match=f"^the model has {complaint}") as caught:
        huggingface.write(tmp_path / "out", made._replace(encoder=made.encoder.replace(settings)))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_tokenizer_of_mpnet_has_its_padding_at_id_1(tokens):
    """Ids of WordPiece and of BPE of bytes are exchanged; in a Unigram model they belong to the model."""
    lines = ["the king was old and no travelers went away", "every word is here"] * 9
    unigram = tokenizer.train(lines, TokenizerConfig(kind="unigram", vocab_size=285))
    complaint = FAMILIES["mpnet"].tokenizer_complaint
    assert complaint(unigram).startswith("the tokenizer has 0 as the id of its padding, and transformers' MPNet")
    assert not complaint(tokens) and not complaint(model_of(tokens, "mpnet").tokenizer)


# --- parts that are left out, and notes


def test_a_model_that_reads_from_left_to_right_needs_its_head(tokens, tmp_path):
    made = model_of(tokens, "bert", "clm")
    huggingface.write(tmp_path, made)
    assert json.loads((tmp_path / "config.json").read_text())["is_decoder"] is True
    with pytest.raises(UserError, match="left_to_right.* only as BertLMHeadModel; the model has no head 'clm'"):
        huggingface.write(tmp_path, made._replace(params={"encoder": made.params["encoder"]}))
    weights.write(tmp_path / "model.safetensors", {"bert.pooler.dense.bias": np.zeros(16, np.float32)})
    with pytest.raises(UserError, match="^config.json has is_decoder=True; .* only as BertLMHeadModel"):
        huggingface.read(tmp_path)


# --- what a folder holds


@pytest.mark.parametrize(
    "tensors, complaint",
    [
        ({"bert.pooler.dense.bias": None}, r"lacks bert\.pooler\.dense\.bias"),
        ({"bert.encoder.layer.1.output.dense.bias": None}, r"lacks bert\.encoder\.layer\.1\.output\.dense\.bias"),
        ({"bert.encoder.layer.2.output.dense.bias": np.zeros(16, np.float32)}, "not know: bert.encoder.layer.2.output"),
        ({"bert.pooler.dense.weight": np.zeros((16, 8), np.float32)}, r"bert.pooler.dense.weight has shape \[16, 8\]"),
        ({WORDS: np.zeros((61, 16), np.float32)}, rf"{WORDS} has shape \[61, 16\], .* makes it \[60, 16\]"),
        ({"bert.pooler.dense.bias": np.zeros(16, np.int64)}, "bert.pooler.dense.bias holds int64; save it as float32"),
        ({"bert.embeddings.position_ids": np.ones((1, 20), np.int64)}, "position_ids does not count from 0"),
        ({"bert.pooler.dense.bias": None, "bert.pooler.dense.weight": None}, "has mlm, nsp beside its encoder"),
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
    with pytest.raises(UserError, match="decoder.weight differs from its bert.*; add --encoder-only"):
        huggingface.read(folder)
    untied, _ = huggingface.read(folder, encoder_only=True)
    jax.tree.map(np.testing.assert_array_equal, untied.params, tied.params)


@pytest.mark.parametrize(
    "kind, part, name, shapes, expected",
    [
        ("xlnet", "plm", "transformer.layer.1.rel_attn.q", [(16, 4, 4), (2, 8, 16)], "[16, 2, 8]"),
        ("xlnet", "plm", "transformer.layer.1.rel_attn.o", [(16, 16), (0,), ()], "[16, 2, 8]"),
        ("modernbert", "mlm", "model.layers.1.attn.Wqkv.weight", [(47, 16), (51, 16)], "[48, 16]"),
    ],
)
def test_tensors_that_join_or_split_kernels_are_named_as_in_the_file(
    tokens, tmp_path, kind, part, name, shapes, expected
):
    huggingface.write(tmp_path, model_of(tokens, kind, part))
    whole = np.array(weights.read(tmp_path)[name])
    for shape in shapes:
        change(tmp_path, **{name: np.resize(whole, shape)})
        with pytest.raises(UserError, match=rf"{name} has shape \[.*makes it {re.escape(expected)}"):
            huggingface.read(tmp_path)
    change(tmp_path, **{name: None})
    with pytest.raises(UserError, match=f"lacks {name};"):
        huggingface.read(tmp_path)


def test_a_vocabulary_of_another_size_is_refused(folder):
    lines = (folder / "vocab.txt").read_text()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text(lines + "extra\n")
    with pytest.raises(UserError, match="has 60 rows of word embeddings and 61 ids: 'extra' have no"):
        huggingface.read(folder)
