"""ModernBERT, Ettin and mmBERT against transformers 4 and 5: values, gradients, bytes, and every setting."""

import dataclasses

import numpy as np
import pytest

from bertjax.interop import families, foreign_settings, huggingface, weights
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from tests.interop import parity  # noqa: E402

# Layers 0 and 3 are global, the others see 4 tokens to either side.
SIZES = {
    "num_hidden_layers": 5, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "local_attention": 8, "global_rope_theta": 1000.0, "local_rope_theta": 10.0,
    "embedding_dropout": 0.0, "pad_token_id": 0,
}  # fmt: skip
FAMILY = families.of_config({"model_type": "modernbert"})


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms and biases too; return the model of transformers."""
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(vocab_size=parity.TOKENS.vocab_size, **SIZES | settings)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, f"ModernBert{suffix}")(config))


BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)


@pytest.mark.parametrize(
    "settings",
    [{}, BIASES, {"global_attn_every_n_layers": 1}, {"hidden_activation": "relu", "classifier_activation": "relu"}],
    ids=["published", "biases", "global", "relu"],
)
def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path, settings):
    parity.check_values_and_gradients(tmp_path, make(tmp_path, "ForMaskedLM", **settings), FAMILY)


@pytest.mark.parametrize("suffix", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("settings", [{}, BIASES], ids=["published", "biases"])
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix, settings):
    parity.check_bytes(tmp_path, make(tmp_path / "theirs", suffix, **settings))


@pytest.mark.parametrize(
    "suffix, settings",
    [
        ("ForSequenceClassification", {"num_labels": 3, "classifier_pooling": "cls"}),
        ("ForSequenceClassification", {"num_labels": 3, "classifier_pooling": "mean"}),
        ("ForTokenClassification", {"num_labels": 3}),
        ("ForQuestionAnswering", {}),
        ("ForMultipleChoice", {"classifier_pooling": "mean"}),
    ],
)
def test_heads_on_labels(tmp_path, suffix, settings):
    written = parity.check_labels(tmp_path, make(tmp_path, suffix, **settings), has_choices="Choice" in suffix)
    # What a head pools is written back.
    assert written["classifier_pooling"] == settings.get("classifier_pooling", "cls")


def config_of(**settings) -> dict:
    return {"model_type": "modernbert", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4} | settings


def test_keys_of_transformers_5():
    """They replace those of transformers 4, which a folder that was read with 5 may keep beside them."""
    kinds = ["full_attention", "sliding_attention"] * 2
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50},
    }
    config = config_of(layer_types=kinds, rope_parameters=rope, global_rope_theta=7.0, local_attention=9)
    block = FAMILY.encoder_config(config).block
    assert (block.global_every, block.window, block.rotary_base, block.local_rotary_base) == (2, 4, 500.0, 50.0)
    block = FAMILY.encoder_config(config_of(layer_types=["full_attention"] * 4)).block
    assert (block.global_every, block.window) == (1, 0)
    assert FAMILY.encoder_config(config_of(layer_types=["full_attention"] * 4, local_attention=0)).block == block
    assert FAMILY.encoder_config(config_of()).block == PRESETS["modernbert_base"].block


def test_neutral_settings_of_rotations():
    plain = {"rope_type": "default", "rope_theta": 500.0}
    neutral = plain | {"factor": 1.0, "partial_rotary_factor": 1.0}
    blocks = [FAMILY.encoder_config(config_of(rope_parameters={"full_attention": x})).block for x in (plain, neutral)]
    assert blocks[0] == blocks[1]
    # Only scaled rotations read it.
    unread = plain | {"original_max_position_embeddings": 40}
    assert FAMILY.encoder_config(config_of(rope_parameters={"full_attention": unread})).block == blocks[0]
    for scaling in ({"rope_type": "default"}, {"type": "default"}, {}, None):
        assert not foreign_settings.notes_of_config(config_of(rope_scaling=scaling), FAMILY.settings_read)
    # transformers 4 reads null as the base of the global layers.
    for base, settings in ((7.0, {"global_rope_theta": 7.0}), (160_000.0, {})):
        block = FAMILY.encoder_config(config_of(local_rope_theta=None, **settings)).block
        assert (block.rotary_base, block.local_rotary_base) == (base, base)


def test_a_base_without_a_kind_of_layer_is_left_out_with_a_note():
    """Neither transformers 4 nor 5 reads it."""
    config = foreign_settings.with_own_names(config_of(rope_theta=500.0, global_rope_theta=1000.0))
    [note] = foreign_settings.notes_of_config(config, FAMILY.settings_read)
    assert note == "config.json has settings that bertjax does not know and leaves out: 'rope_theta'"
    assert FAMILY.encoder_config(config).block.rotary_base == 1000.0


def test_windows_that_no_layer_reads_and_those_of_both_versions():
    for size in (0, 1, 8):
        block = FAMILY.encoder_config(config_of(num_hidden_layers=1, local_attention=size)).block
        assert (block.window, block.global_every) == (0, 1)
    for size, side in ((8, 4), (9, 4), (8, None)):
        config = config_of(local_attention=size, sliding_window=side)
        assert not foreign_settings.notes_of_config(config, FAMILY.settings_read)
        assert FAMILY.encoder_config(config).block.window == 4


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"decoder_bias": False}, "config.json has decoder_bias=False; bertjax's decoder has one"),
        ({"mlp_bias": True}, "config.json has norm_bias=False, attention_bias=False, mlp_bias=True, classifier_bias="),
        ({"norm_bias": "yes"}, "config.json has norm_bias='yes', attention_bias=False"),
        ({"hidden_activation": "silu"}, "config.json has hidden_activation='silu'; bertjax's ModernBERT computes 'gel"),
        ({"classifier_activation": "relu"}, "config.json has classifier_activation='relu'; bertjax's ModernBERT has t"),
        ({"layer_types": ["sliding_attention"] * 4}, "config.json has layer_types=.* has global layers in one period"),
        (
            {"layer_types": ["full_attention"] * 3},
            "config.json has 3 layer_types and num_hidden_layers=4; get the file again",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
            "config.json has rope_parameters with .*partial_rotary_factor.*; bertjax's rotary positions are not scaled",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
            r"config.json has rope_parameters with .*yarn.*; bertjax's rotary positions are not scaled",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0}},
            r"config.json has rope_parameters with .*yarn.*; ModernBERT has them for each kind of layer, under full_at",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "full_attention": {"rope_type": "default"}}},
            r"config.json has rope_parameters with {'rope_type': 'linear'}; ModernBERT has them for each kind of layer",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}},
            r"config.json has rope_parameters with {'rope_type': 'linear'}; bertjax's rotary positions are not scaled",
        ),
        *(
            (
                {"local_attention": window},
                f"config.json has local_attention={window}, with which a token of a local layer sees no other one; "
                "bertjax needs 2 or more, or global_attn_every_n_layers=1 if no layer is local",
            )
            for window in (1, 0, -2)
        ),
        *(
            (
                {"local_attention": window} | period,
                f"config.json has local_attention={window!r}, which is not a whole number; download the file again",
            )
            for window in (None, True, "8", 8.0)
            for period in ({}, {"global_attn_every_n_layers": 1})
        ),
        (
            {"local_attention": 8, "sliding_window": 2},
            "config.json has sliding_window=2, which transformers 5 computes, and local_attention=8, which gives 4 to",
        ),
        ({"sliding_window": "x"}, "config.json has sliding_window='x', .* local_attention=128, which gives 64 to"),
        *(
            ({"global_attn_every_n_layers": every} | kinds, f"config.json has global_attn_every_n_layers={every}; bert")
            for every in (0, -1)
            for kinds in ({}, {"layer_types": ["full_attention"] * 4})
        ),
        *(
            ({"rope_parameters": odd}, "config.json has rope_parameters with .*x.* in place of a table; download the")
            for odd in ({"full_attention": "x"}, ["x"], "x")
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "config.json has rope_scaling=.*positions are scaled"),
        ({"is_causal": True}, "config.json has is_causal=True: its tokens see only earlier ones"),
    ],
)
def test_settings_that_are_not_computed_are_refused(settings, complaint):
    config = config_of(**settings)
    with pytest.raises(UserError, match=f"^{complaint}"):
        foreign_settings.notes_of_config(config, FAMILY.settings_read)
        FAMILY.encoder_config(config)


@pytest.mark.parametrize(
    "settings, lost",
    [
        ({"embedding_dropout": 0.1, "mlp_dropout": 0.0, "classifier_dropout": 0.1}, "mlp_dropout=0.0"),
        ({"mlp_dropout": 0.1, "classifier_dropout": 0.2}, "mlp_dropout=0.1 and classifier_dropout=0.2"),
        ({"embedding_dropout": 0.1, "mlp_dropout": 0.1, "classifier_dropout": 0.1, "attention_dropout": 0.2}, ""),
        (dict.fromkeys(("embedding_dropout", "mlp_dropout", "classifier_dropout", "attention_dropout"), 0.1), ""),
    ],
)
def test_rates_of_dropout_that_are_not_kept_are_noted(tmp_path, settings, lost):
    make(tmp_path / "theirs", "ForMaskedLM", **settings)
    ours, notes = huggingface.read(tmp_path / "theirs")
    rate = settings.get("embedding_dropout", 0.0)
    assert (ours.encoder.dropout, ours.encoder.attention_dropout) == (rate, settings.get("attention_dropout", 0.0))
    on_output = settings.get("attention_dropout", 0.0)
    noted = [
        f"config.json has attention_dropout={on_output}, which transformers applies to attention's output too; bertjax "
        f"takes embedding_dropout={rate} there"
    ] * (rate != on_output)
    expected = [
        f"config.json has {lost}; bertjax has one rate of dropout outside of attention and takes "
        f"embedding_dropout={rate}: set model.dropout to train with another"
    ]
    assert [note for note in notes if "_dropout" in note] == [*(expected if lost else []), *noted]
    huggingface.write(tmp_path / "ours", ours)
    assert [note for note in huggingface.read(tmp_path / "ours")[1] if "_dropout" in note] == noted


def test_another_pooling_is_refused():
    with pytest.raises(
        UserError, match="^config.json has classifier_pooling='max', and bertjax's head computes cls and"
    ):
        FAMILY.task_heads["classification"].check({"classifier_pooling": "max"})


def test_a_norm_before_the_first_attention_is_refused(tmp_path):
    make(tmp_path, "Model")
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    tensors["layers.0.attn_norm.weight"] = np.ones(16, np.float32)
    weights.write(tmp_path / "model.safetensors", tensors)
    with pytest.raises(UserError, match="has model.layers.0.attn_norm.weight; ModernBERT has no norm before its first"):
        huggingface.read(tmp_path)


# Their `config.json`, but for settings of training, files and symbols.
PUBLISHED = {
    "modernbert_base": {"vocab_size": 50368, "position_embedding_type": "absolute", "layer_norm_eps": 1e-5},
    "modernbert_large": {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "position_embedding_type": "absolute", "classifier_pooling": "mean"},
    "ettin_32m": {"hidden_size": 384, "intermediate_size": 576, "num_hidden_layers": 10, "num_attention_heads": 6}
    | {"max_position_embeddings": 7999, "local_rope_theta": 160000.0, "position_embedding_type": "sans_pos"},
    "mmbert_base": {"vocab_size": 256000, "local_rope_theta": 160000, "position_embedding_type": "sans_pos"}
    | {"initializer_cutoff_factor": 2.0, "sparse_pred_ignore_index": -100, "repad_logits_with_grad": False},
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_settings_give_the_preset(preset):
    config = {"model_type": "modernbert", "global_attn_every_n_layers": 3, "local_attention": 128} | PUBLISHED[preset]
    assert foreign_settings.notes_of_config(config, FAMILY.settings_read) == []
    expected = dataclasses.replace(PRESETS[preset], vocab_size=config.get("vocab_size", 50368))
    assert FAMILY.encoder_config(config) == expected
    assert not FAMILY.refusals(expected, 0)
