"""EuroBERT against transformers 5: values, gradients, bytes, and every setting."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax.interop import families, foreign_settings, huggingface
from bertjax.interop.outputs import reading_of, values
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")
if not hasattr(transformers, "EuroBertConfig"):
    pytest.skip("transformers 4 has no EuroBERT", allow_module_level=True)

from tests.interop import parity  # noqa: E402

# Two heads of keys and values for four of queries.
SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}  # fmt: skip
FAMILY = families.of_config({"model_type": "eurobert"})


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms too; return the model of transformers."""
    torch.manual_seed(0)
    config = transformers.EuroBertConfig(vocab_size=parity.TOKENS.vocab_size, **SIZES | settings)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, f"EuroBert{suffix}")(config))


@pytest.mark.parametrize("shared", [2, 1, 4])
def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path, shared):
    model = make(tmp_path, "ForMaskedLM", num_key_value_heads=shared)
    parity.check_values_and_gradients(tmp_path, model, FAMILY)


@pytest.mark.parametrize("suffix", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"])
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix):
    parity.check_bytes(tmp_path, make(tmp_path / "theirs", suffix))


@pytest.mark.parametrize("pooling", ["late", "bos", "mean"])
def test_heads_on_examples(tmp_path, pooling):
    model = make(tmp_path, "ForSequenceClassification", num_labels=3, classifier_pooling=pooling)
    assert parity.check_labels(tmp_path, model)["classifier_pooling"] == pooling


def test_heads_on_tokens(tmp_path):
    parity.check_labels(tmp_path, make(tmp_path, "ForTokenClassification", num_labels=3))


def test_the_file_for_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
    from bertjax.interop import onnx

    for pooling in ("late", "mean"):
        make(tmp_path / pooling, "ForSequenceClassification", num_labels=3, classifier_pooling=pooling)
        notes = onnx.write(tmp_path / f"{pooling}.onnx", huggingface.read(tmp_path / pooling)[0])
        assert notes[0] == "outputs: logits" and notes[1].startswith("checked: onnxruntime and bertjax differ by ")


def config_of(**settings) -> dict:
    return {"model_type": "eurobert", "hidden_size": 32, "num_attention_heads": 4} | settings


def test_settings_of_both_kinds_of_folders():
    # As the authors' code writes it, and as transformers 5 does.
    new = {"rope_type": "default", "rope_theta": 250000}
    scaling = {"type": "default", "rope_theta": 250000}
    for rotary in (
        {"rope_theta": 250000},
        {"rope_parameters": new},
        {"rope_scaling": scaling, "rope_theta": 7.0},
        {"rope_scaling": {"type": "default"}, "rope_theta": 250000},
        {"rope_scaling": scaling, "rope_parameters": new | {"rope_theta": 7.0}},
    ):
        theirs = transformers.EuroBertConfig(**rotary).rope_parameters
        assert theirs["rope_theta"] == 250000
        foreign_settings.notes_of_config(config_of(**rotary), FAMILY.settings_read)
        block = FAMILY.encoder_config(config_of(num_key_value_heads=2, **rotary)).block
        assert (block.rotary_base, block.key_value_heads) == (250_000.0, 2)
    for every in ({}, {"num_key_value_heads": None}, {"num_key_value_heads": 4}):
        assert FAMILY.encoder_config(config_of(**every)).block.key_value_heads == 0


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"hidden_act": "gelu"}, "config.json has hidden_act='gelu'; bertjax's EuroBERT computes 'silu' only"),
        ({"mlp_bias": True}, "config.json has mlp_bias=True; bertjax's EuroBERT computes False only"),
        ({"attention_bias": True}, "config.json has attention_bias=True; bertjax's EuroBERT computes False only"),
        (
            {"tie_word_embeddings": True},
            "config.json has tie_word_embeddings=True; bertjax's EuroBERT computes False only; add --encoder-only",
        ),
        ({"head_dim": 16}, "config.json has head_dim=16; bertjax's EuroBERT computes hidden_size / .* = 8 only"),
        ({"num_key_value_heads": 3}, "model.block.key_value_heads=3 does not divide model.heads=4"),
        ({"num_key_value_heads": "2"}, "config.json has num_key_value_heads='2', which is not a whole number"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "config.json has rope_parameters with .*yarn.*; bertjax's rotary positions are not scaled",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "config.json has rope_scaling with .*yarn.*; bertjax's rotary positions are not scaled",
        ),
        ({"is_causal": True}, "config.json has is_causal=True: its tokens see only earlier ones"),
    ],
)
def test_settings_that_are_not_computed_are_refused(settings, complaint):
    config = config_of(**settings)
    with pytest.raises(UserError, match=f"^{complaint}"):
        foreign_settings.notes_of_config(config, FAMILY.settings_read)
        FAMILY.encoder_config(config)


def test_a_tied_decoder_is_left_out_with_encoder_only_and_by_other_heads(tmp_path):
    """transformers writes one tensor for both."""
    model = make(tmp_path / "mlm", "ForMaskedLM", tie_word_embeddings=True)
    with pytest.raises(UserError, match="tie_word_embeddings=True; .* add --encoder-only to convert the encoder alone"):
        huggingface.read(tmp_path / "mlm")
    ours, _ = huggingface.read(tmp_path / "mlm", encoder_only=True)
    computed, real_BT = values(ours, reading_of(ours), parity.batch()), parity.batch()["examples_BT"] > 0
    with torch.no_grad():
        theirs_BTD = model.model(**parity.inputs()).last_hidden_state.numpy()
    np.testing.assert_allclose(computed["last_hidden_state"][real_BT], theirs_BTD[real_BT], atol=1e-4)
    labeled = make(tmp_path / "labels", "ForTokenClassification", num_labels=3, tie_word_embeddings=True)
    parity.check_labels(tmp_path / "labels", labeled)


def test_the_pooling_of_the_authors_code_is_read(tmp_path):
    make(tmp_path, "ForSequenceClassification", num_labels=3, classifier_pooling="bos")
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"clf_pooling": settings.pop("classifier_pooling")}))
    model, notes = huggingface.read(tmp_path)
    [task] = model.settings["tasks"].values()
    assert task["objective"]["pooling"] == "cls" and not [note for note in notes if "clf_pooling" in note]


def test_another_pooling_is_refused():
    with pytest.raises(UserError, match="^config.json has classifier_pooling='max', and bertjax's head computes late"):
        FAMILY.task_heads["classification"].check({"classifier_pooling": "max"})


# Their `config.json`, but for settings of training and symbols.
PUBLISHED = {
    "eurobert_210m": {"num_key_value_heads": 12, "head_dim": 64},
    "eurobert_610m": {"hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 26, "head_dim": 64}
    | {"num_attention_heads": 18, "num_key_value_heads": 6},
    "eurobert_2_1b": {"hidden_size": 2304, "intermediate_size": 6144, "num_hidden_layers": 32, "head_dim": 128}
    | {"num_attention_heads": 18, "num_key_value_heads": 6},
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_settings_give_the_preset(preset):
    files = {"auto_map": {"AutoModel": "modeling_eurobert.EuroBertModel"}, "pretraining_tp": 1, "hidden_dropout": 0.0}
    config = {"model_type": "eurobert", "rope_theta": 250000, "rope_scaling": None} | files | PUBLISHED[preset]
    assert foreign_settings.notes_of_config(config, FAMILY.settings_read) == []
    expected = dataclasses.replace(PRESETS[preset], vocab_size=128256)
    assert FAMILY.encoder_config(config) == expected
    assert not FAMILY.refusals(expected, 0)


def test_what_is_written_has_the_keys_of_the_class(tmp_path):
    make(tmp_path / "theirs", "ForMaskedLM")
    huggingface.write(tmp_path / "ours", huggingface.read(tmp_path / "theirs")[0])
    configs = (transformers.AutoConfig.from_pretrained(tmp_path / name) for name in ("theirs", "ours"))
    before, after = (config.to_dict() for config in configs)
    ignored = {"bos_token_id", "eos_token_id", "mask_token_id", "dtype", "transformers_version", "_name_or_path"}
    assert {key for key in before if before[key] != after.get(key)} <= ignored
    assert (after["bos_token_id"], after["mask_token_id"]) == (parity.TOKENS.cls_id, parity.TOKENS.mask_id)
