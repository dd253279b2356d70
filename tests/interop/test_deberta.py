"""DeBERTa-v3 against transformers: values, gradients, bytes, and every setting."""

import json

import numpy as np
import pytest

from bertjax.interop import families, foreign_settings, huggingface, weights
from bertjax.models.blocks.deberta import DebertaBlock, bucket_of
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position  # noqa: E402

from tests.interop import parity  # noqa: E402

# As published, at small sizes: rows of 40 tokens are longer than the distances that have buckets of their own.
PUBLISHED = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 40,
    "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False,
    "num_attention_heads": 4, "num_hidden_layers": 3, "type_vocab_size": 0, "vocab_size": parity.TOKENS.vocab_size,
}  # fmt: skip
FAMILY = families.of_config({"model_type": "deberta-v2"})


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms too; return the model of transformers."""
    torch.manual_seed(0)
    ours = {"pad_token_id": 0, "legacy": False, "tie_word_embeddings": False}  # see `FAMILY.settings`
    config = transformers.DebertaV2Config(**PUBLISHED | ours | settings)
    return parity.write(folder, getattr(transformers, f"DebertaV2{suffix}")(config))


@pytest.mark.parametrize("settings", [{}, {"max_relative_positions": 12, "position_buckets": 6}])
def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path, settings):
    model = make(tmp_path, "ForMaskedLM", **settings)
    parity.check_values_and_gradients(tmp_path, model, FAMILY)


@pytest.mark.parametrize(
    "suffix", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix):
    parity.check_bytes(tmp_path, make(tmp_path / "theirs", suffix))


@pytest.mark.parametrize("suffix", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_on_labels(tmp_path, suffix):
    config = parity.check_labels(
        tmp_path, make(tmp_path, suffix, **{"num_labels": 3} if "Question" not in suffix else {})
    )
    assert config["architectures"] == [f"DebertaV2{suffix}"] and config["pos_att_type"] == ["p2c", "c2p"]


def test_choices(tmp_path):
    parity.check_labels(tmp_path, make(tmp_path, "ForMultipleChoice"), has_choices=True)


def test_the_head_of_the_default_class_is_read_and_written_as_the_published_one(tmp_path):
    model = make(tmp_path / "theirs", "ForMaskedLM", legacy=True, tie_word_embeddings=True)
    ours, _ = huggingface.read(tmp_path / "theirs")
    huggingface.write(tmp_path / "ours", ours)
    opened = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert opened.config.legacy is False
    with torch.no_grad():
        torch.testing.assert_close(opened(**parity.inputs()).logits, model(**parity.inputs()).logits)


def test_tensors_of_published_files_that_no_class_reads_are_left_out_with_a_note(tmp_path):
    make(tmp_path, "ForMaskedLM")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"], config["legacy"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    more = ("mask_predictions.dense.weight", "deberta.embeddings.position_embeddings.weight")
    more = (*more, "deberta.embeddings.word_embeddings._weight")
    weights.write(tmp_path / "model.safetensors", tensors | dict.fromkeys(more, np.ones((2, 2), np.float32)))
    ours, notes = huggingface.read(tmp_path)
    [note] = [note for note in notes if note.startswith("left out, because no class of transformers reads it: ")]
    assert all(name in note for name in more) and ours.params["heads"].keys() == {"mlm"}


@pytest.mark.slow
def test_the_file_for_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
    from bertjax.interop import onnx

    make(tmp_path / "theirs", "ForMaskedLM")
    notes = onnx.write(tmp_path / "model.onnx", huggingface.read(tmp_path / "theirs")[0])
    assert notes[1].startswith("checked: onnxruntime and bertjax differ by ")


def test_of_replaced_token_detection_the_encoder_is_exported():
    parts = frozenset({"rtd", "mlm", "generator", "pooler"})
    kept, [note] = FAMILY.leave_out(parts)
    assert FAMILY.class_of(kept) == "DebertaV2Model" and note.startswith("generator and heads not exported: ")
    assert FAMILY.leave_out(frozenset({"mlm"})) == (frozenset({"mlm"}), [])


@pytest.mark.parametrize("buckets, largest", [(256, 512), (8, 40), (6, 12), (2, 9), (32, 18)])
def test_distances_are_in_the_buckets_of_transformers(buckets, largest):
    distances = np.arange(-1000, 1001)
    theirs = make_log_bucket_position(torch.tensor(distances), buckets, largest).long().numpy()
    ours = bucket_of(distances, buckets, largest)
    np.testing.assert_array_equal(np.clip(ours, -buckets, buckets - 1), np.clip(theirs, -buckets, buckets - 1))


def test_published_settings_give_the_preset():
    published = PUBLISHED | {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    published |= {
        "max_position_embeddings": 512,
        "position_buckets": 256,
        "num_hidden_layers": 12,
        "vocab_size": 128100,
    }
    assert foreign_settings.notes_of_config(published, FAMILY.settings_read) == []
    assert FAMILY.encoder_config(published) == PRESETS["deberta_v3_base"].replace({"vocab_size": 128100})
    assert FAMILY.encoder_config(PUBLISHED).block == DebertaBlock(buckets=8, max_distance=40)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"relative_attention": False}, "relative_attention=False; bertjax's DeBERTa-v3 computes True only"),
        ({"position_biased_input": True}, "position_biased_input=True; bertjax's DeBERTa-v3 computes False only"),
        ({"share_att_key": False}, "share_att_key=False; bertjax's DeBERTa-v3 computes True only"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd='none'; bertjax's DeBERTa-v3 computes 'layer_norm' only"),
        ({"pos_att_type": "c2p"}, "pos_att_type='c2p'; bertjax's DeBERTa-v3 computes 'p2c|c2p' only"),
        ({"pos_att_type": ["p2c", "c2p", "p2p"]}, "pos_att_type=.*; bertjax's DeBERTa-v3 computes 'p2c|c2p' only"),
        ({"conv_kernel_size": 3, "conv_act": "gelu"}, "conv_kernel_size=3; bertjax's DeBERTa-v3 computes 0 only"),
        ({"type_vocab_size": 2}, "type_vocab_size=2; bertjax's DeBERTa-v3 computes 0 only"),
        ({"position_buckets": -1}, "position_buckets=-1; bertjax's DeBERTa-v3 has distances in buckets only"),
        ({"position_buckets": "8"}, "position_buckets='8', which is not a whole number"),
        ({"embedding_size": 16}, "embedding_size=16; bertjax's DeBERTa-v3 computes 32 only"),
        ({"attention_head_size": 16}, "attention_head_size=16; bertjax's DeBERTa-v3 computes 8 only"),
        ({"pooler_hidden_size": 16}, "pooler_hidden_size=16; bertjax's DeBERTa-v3 computes 32 only"),
    ],
)
def test_settings_that_are_not_computed_are_refused(settings, complaint):
    config = PUBLISHED | settings
    assert foreign_settings.notes_of_config(config, FAMILY.settings_read) == []
    with pytest.raises(UserError, match=f"^config.json has {complaint.replace('|', '.')}"):
        FAMILY.encoder_config(config)


def test_an_encoder_with_segments_has_no_class():
    encoder = FAMILY.encoder_config(PUBLISHED)
    assert FAMILY.refusals(encoder, 0) == []
    [line] = FAMILY.refusals(encoder.replace({"embeddings.segments": 2}), 0)
    assert line.startswith("the model has model.embeddings.segments=2, and transformers' DeBERTa-v3 computes 0 only")
