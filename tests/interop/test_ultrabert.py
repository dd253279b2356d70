"""UltraBERT against transformers 5: values, gradients, bytes, and every setting."""

import pytest

from bertjax.interop import families, foreign_settings, huggingface
from bertjax.models.blocks.ultrabert import UltraBlock
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")
if not hasattr(transformers, "UltrabertConfig"):
    pytest.skip("this version of transformers has no UltraBERT", allow_module_level=True)

from tests.interop import parity  # noqa: E402

# Two local layers, a global one, and a local one; rows are longer than the window.
SIZES = {
    "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 0, "sliding_window": 5,
    "prediction_head_size": 20,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}  # fmt: skip
FAMILY = families.of_config({"model_type": "ultrabert"})
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms too; return the model of transformers."""
    torch.manual_seed(0)
    config = transformers.UltrabertConfig(vocab_size=parity.TOKENS.vocab_size, **SIZES | settings)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, f"Ultrabert{suffix}")(config))


def saved(name: str) -> str:
    """Return the name that transformers gives a parameter in a file."""
    return name.replace("head.decoder.", "cls.") if name.startswith("head.") else f"ultrabert{name[len('model') :]}"


@pytest.mark.parametrize("kinds", [None, [GLOBAL] * 4, [LOCAL] * 4, [LOCAL, GLOBAL] * 2])
def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path, kinds):
    model = make(tmp_path, "ForMaskedLM", layer_types=kinds)
    parity.check_values_and_gradients(tmp_path, model, FAMILY, saved)


@pytest.mark.parametrize(
    "suffix", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix):
    parity.check_bytes(tmp_path, make(tmp_path / "theirs", suffix))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_heads_on_examples(tmp_path, pooling):
    model = make(tmp_path, "ForSequenceClassification", num_labels=3, classifier_pooling=pooling)
    assert parity.check_labels(tmp_path, model)["classifier_pooling"] == pooling


@pytest.mark.parametrize("suffix", ["ForTokenClassification", "ForQuestionAnswering"])
def test_heads_on_tokens(tmp_path, suffix):
    parity.check_labels(tmp_path, make(tmp_path, suffix, **{"num_labels": 3} if "Token" in suffix else {}))


@pytest.mark.slow
def test_the_file_for_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
    from bertjax.interop import onnx

    make(tmp_path / "theirs", "ForMaskedLM")
    notes = onnx.write(tmp_path / "model.onnx", huggingface.read(tmp_path / "theirs")[0])
    assert notes[1].startswith("checked: onnxruntime and bertjax differ by ")


def config_of(**settings) -> dict:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 6}
    return {"model_type": "ultrabert"} | sizes | settings


def test_settings_of_both_kinds_of_folders():
    """A window and a rotary base per layer, as in older files, and by kind, as transformers writes them."""
    windows, bases = [9, 9, 0] * 2, [10.0, 10.0, 500.0] * 2
    older = config_of(attention_windows=windows, rope_theta=bases)
    theirs = transformers.UltrabertConfig(**older)
    by_kind = config_of(
        sliding_window=9,
        layer_types=theirs.layer_types,
        rope_parameters={kind: dict(theirs.rope_parameters[kind]) for kind in (LOCAL, GLOBAL)},
    )
    for config in (older, by_kind):
        assert foreign_settings.notes_of_config(config, FAMILY.settings_read) == []
        block = FAMILY.encoder_config(config).block
        assert block == UltraBlock(rotary_base=500.0, local_rotary_base=10.0, window=9, global_every=3)
    assert FAMILY.encoder_config(config_of()).block == UltraBlock()


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"layer_types": [GLOBAL, *[LOCAL] * 5]}, "config.json has layer_types=.* for 6 layers; bertjax's UltraBERT"),
        ({"layer_types": [LOCAL, LOCAL, GLOBAL]}, "config.json has layer_types=.* for 6 layers; bertjax's UltraBERT"),
        ({"rope_theta": [1.5, 2.5, 9.0] * 2}, "config.json has rope_theta with .*; bertjax has one base per kind of"),
        (
            {"rope_parameters": {"rope_type": "default"}},
            "config.json has rope_parameters with .*for each kind of layer",
        ),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, "config.json has rope_parameters with .* for"),
        ({"rope_theta": 10_000.0}, "config.json has rope_theta=10000.0; UltraBERT has a list with one value per layer"),
        ({"attention_windows": 128}, "config.json has attention_windows=128; UltraBERT has a list with one value per"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, "config.json has rope_parameters with .*yarn"),
        ({"head_dim": 16}, "config.json has head_dim=16; bertjax's UltraBERT computes hidden_size / .* = 8 only"),
        ({"hidden_act": "gelu"}, "config.json has hidden_act='gelu'; bertjax's UltraBERT computes 'silu' only"),
        ({"tie_word_embeddings": True}, "config.json has tie_word_embeddings=True; .* add --encoder-only"),
    ],
)
def test_settings_that_are_not_computed_are_refused(settings, complaint):
    config = config_of(**settings)
    with pytest.raises(UserError, match=f"^{complaint}"):
        foreign_settings.notes_of_config(config, FAMILY.settings_read)
        FAMILY.encoder_config(config)
