"""`config.json` of every family: published settings give the preset, and what bertjax does not compute is refused."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax.interop import families, foreign_settings, huggingface, weights
from bertjax.interop.task_heads import CLASSIFICATION
from bertjax.models.config import EncoderConfig
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from tests.interop import models


def read(kind: str, **settings) -> EncoderConfig:
    """Return the encoder of a `config.json` that has no setting that bertjax does not know."""
    config = foreign_settings.with_own_names({"model_type": kind} | models.NEEDED.get(kind, {}) | settings)
    family = families.of_config(config)
    assert foreign_settings.notes_of_config(config, family.settings_read) == []
    return family.encoder_config(config)


# As published, but for settings of training, files and symbols.
_DEBERTA = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-7,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
    "max_relative_positions": -1, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0,
    "vocab_size": 128100,
}  # fmt: skip
_EUROBERT = {"rope_theta": 250000, "rope_scaling": None, "auto_map": {"AutoModel": "m.M"}, "pretraining_tp": 1}
_EUROBERT |= {"hidden_dropout": 0.0, "num_attention_heads": 18, "num_key_value_heads": 6, "vocab_size": 128256}
_MODERNBERT = {"global_attn_every_n_layers": 3, "local_attention": 128, "vocab_size": 50368}
_NEOBERT = {
    "hidden_size": 768, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 3072, "dim_head": 64,
    "max_length": 4096, "vocab_size": 30522, "hidden_act": "SwiGLU", "norm_eps": 1e-5, "kwargs": {"x": True},
    "auto_map": {"AutoConfig": "model.NeoBERTConfig"}, "trust_remote_code": True, "decoder_init_range": 0.02,
    "pretrained_model_name_or_path": "google-bert/bert-base-uncased", "classifier_init_range": 0.02,
}  # fmt: skip
PUBLISHED = {
    "deberta_v3_base": ("deberta-v2", _DEBERTA),
    "eurobert_210m": ("eurobert", _EUROBERT | {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64}),
    "eurobert_610m": (
        "eurobert",
        _EUROBERT | {"hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 26, "head_dim": 64},
    ),
    "eurobert_2_1b": (
        "eurobert",
        _EUROBERT | {"hidden_size": 2304, "intermediate_size": 6144, "num_hidden_layers": 32, "head_dim": 128},
    ),
    "modernbert_base": ("modernbert", _MODERNBERT | {"position_embedding_type": "absolute", "layer_norm_eps": 1e-5}),
    "modernbert_large": (
        "modernbert",
        _MODERNBERT
        | {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16},
    ),
    "ettin_32m": (
        "modernbert",
        _MODERNBERT
        | {"hidden_size": 384, "intermediate_size": 576, "num_hidden_layers": 10, "num_attention_heads": 6}
        | {"max_position_embeddings": 7999, "local_rope_theta": 160000.0, "position_embedding_type": "sans_pos"},
    ),
    "mmbert_base": (
        "modernbert",
        _MODERNBERT
        | {"vocab_size": 256000, "local_rope_theta": 160000, "initializer_cutoff_factor": 2.0}
        | {"sparse_pred_ignore_index": -100, "repad_logits_with_grad": False},
    ),
    "neobert": ("neobert", _NEOBERT),
    "mpnet_base": ("mpnet", {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "pad_token_id": 1}),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_settings_give_the_preset(preset):
    kind, settings = PUBLISHED[preset]
    encoder = read(kind, **settings)
    expected = dataclasses.replace(PRESETS[preset], vocab_size=encoder.vocab_size)
    assert encoder == expected
    family = families.of_config({"model_type": kind})
    assert not family.refusals(expected, 0)
    assert family.encoder_config(family.settings(expected, "X")) == expected


def test_missing_settings_are_those_of_transformers():
    assert read("bert") == EncoderConfig(vocab_size=30522)
    assert repr(read("bert", hidden_dropout_prob=0).dropout) == "0.0"
    assert read("neobert", hidden_act="swiglu") == read("neobert")


_FULL, _BOTH = ["full_attention"] * 22, (["full_attention"] + ["sliding_attention"]) * 11
_ROPE, _SMALL = {"rope_type": "default", "rope_theta": 250000}, {"type": "default", "rope_theta": 250000}


@pytest.mark.parametrize(
    "kind, settings, other",
    [
        # Keys of the authors' code and of transformers 5; of two keys for one thing, the one that it takes.
        ("eurobert", {"rope_parameters": _ROPE}, {"rope_theta": 250000}),
        ("eurobert", {"rope_scaling": _SMALL, "rope_theta": 7.0}, {"rope_theta": 250000}),
        ("eurobert", {"rope_scaling": {"type": "default"}, "rope_theta": 250000}, {"rope_theta": 250000}),
        ("eurobert", {"rope_scaling": _SMALL, "rope_parameters": _ROPE | {"rope_theta": 7.0}}, {"rope_theta": 250000}),
        ("eurobert", {"num_key_value_heads": None}, {}),
        ("eurobert", {"num_key_value_heads": 12}, {}),
        (
            "modernbert",
            {"layer_types": _BOTH, "rope_parameters": {"full_attention": _ROPE}, "global_rope_theta": 7.0},
            {"global_attn_every_n_layers": 2, "global_rope_theta": 250000.0},
        ),
        ("modernbert", {"layer_types": _FULL, "local_attention": 0}, {"global_attn_every_n_layers": 1}),
        # Settings without an effect.
        (
            "modernbert",
            {"rope_parameters": {"full_attention": _ROPE | {"factor": 1.0, "original_max_position_embeddings": 40}}},
            {"global_rope_theta": 250000.0},
        ),
        ("modernbert", {"rope_scaling": {"type": "default"}}, {"rope_scaling": {}}),
        ("modernbert", {"local_attention": 9, "sliding_window": None}, {"local_attention": 8, "sliding_window": 4}),
        ("modernbert", {"num_hidden_layers": 1, "local_attention": 0}, {"num_hidden_layers": 1}),
        # transformers 4 reads null as the base of the global layers.
        ("modernbert", {"local_rope_theta": None}, {"local_rope_theta": 160000.0}),
        ("distilbert", {"num_hidden_layers": 3, "n_layers": 7}, {"n_layers": 3}),
        ("xlnet", {"clamp_len": 0}, {"clamp_len": -1}),
        ("xlnet", {"hidden_size": 64, "d_model": 7}, {"d_model": 64}),
    ],
)
def test_two_ways_to_write_one_encoder(kind, settings, other):
    assert read(kind, **settings) == read(kind, **other)


_YARN = {"rope_type": "yarn", "factor": 4.0}
# Each is refused by the name of its last key.
REFUSED = {
    "bert": [
        *({"hidden_act": "silu"}, {"type_vocab_size": "2"}, {"position_embedding_type": "relative_key"}),
        *({"add_cross_attention": True}, {"hidden_dropout_prob": None}, {"quantization_config": {"bits": 4}}),
        *({"auto_map": {"AutoModel": "m.M"}}, {"is_encoder_decoder": True}),
    ],
    "albert": [{"inner_group_num": 2}],
    "mobilebert": [
        *({"use_bottleneck": False}, {"trigram_input": None}),
        {"key_query_shared_bottleneck": True, "use_bottleneck_attention": True},
    ],
    "deberta-v2": [
        *({"relative_attention": False}, {"position_biased_input": True}, {"share_att_key": False}),
        *({"norm_rel_ebd": "none"}, {"pos_att_type": "c2p"}, {"pos_att_type": ["p2c", "c2p", "p2p"]}),
        *({"conv_act": "gelu", "conv_kernel_size": 3}, {"type_vocab_size": 2}, {"position_buckets": -1}),
        *({"position_buckets": "8"}, {"embedding_size": 16}, {"attention_head_size": 16}, {"pooler_hidden_size": 16}),
    ],
    "eurobert": [
        *({"hidden_act": "gelu"}, {"mlp_bias": True}, {"attention_bias": True}, {"tie_word_embeddings": True}),
        *({"head_dim": 16}, {"num_key_value_heads": "2"}, {"rope_parameters": _YARN}, {"rope_scaling": _YARN}),
        {"is_causal": True},
    ],
    "modernbert": [
        *({"decoder_bias": None}, {"mlp_bias": True}, {"norm_bias": "yes"}, {"hidden_activation": "silu"}),
        *({"classifier_activation": "relu"}, {"layer_types": ["sliding_attention"] * 22}, {"layer_types": ["x"]}),
        {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
        *({"rope_parameters": {"full_attention": _YARN}}, {"rope_parameters": _YARN}, {"rope_parameters": ["x"]}),
        *({"rope_parameters": {"full_attention": "x"}}, {"local_attention": 1}, {"local_attention": -2}),
        *({"local_attention": None}, {"local_attention": True}, {"local_attention": 8.0}),
        *({"local_attention": 8, "sliding_window": 2}, {"sliding_window": "x"}, {"global_attn_every_n_layers": 0}),
        {"layer_types": _FULL, "global_attn_every_n_layers": -1},
        {"global_attn_every_n_layers": 1, "local_attention": "8"},
        *({"rope_scaling": _YARN}, {"is_causal": True}),
    ],
    "mpnet": [
        *({"relative_attention_num_buckets": 16}, {"hidden_act": "relu"}, {"max_position_embeddings": 2}),
    ],
    "neobert": [
        *({"rope": False}, {"rms_norm": None}, {"ngpt": True}, {"hidden_act": "gelu"}, {"dim_head": 16}),
        {"intermediate_size": "20"},
    ],
}
WIDTHS = {kind: families.of_config({"model_type": kind}).keys["width"] for kind in models.CLASSES}
IN_EVERY_FAMILY = [
    (kind, setting)
    for kind, width in WIDTHS.items()
    for setting in ({width: "large"}, {"pruned_heads": {"0": [1]}}, *([{"is_decoder": True}] * (kind != "bert")))
]


@pytest.mark.parametrize(
    "kind, settings", [*IN_EVERY_FAMILY, *((kind, each) for kind, listed in REFUSED.items() for each in listed)]
)
def test_settings_that_are_not_computed_are_refused_by_name(kind, settings):
    with pytest.raises(UserError, match=f"^config.json has .*{list(settings)[-1]}") as caught:
        read(kind, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kind, settings, complaint",
    [
        ("t5", {}, "config.json has model_type='t5'; bertjax converts bert, albert"),
        ("bert", {"num_attention_heads": 7}, "model.width=768 is not divisible by model.heads=7"),
        ("mobilebert", {"normalization_type": "rms"}, "model.block.normalization='rms' is unknown"),
        ("eurobert", {"num_key_value_heads": 5}, "model.block.key_value_heads=5 does not divide model.heads=12"),
        ("eurobert", {"tie_word_embeddings": True}, "config.json has tie_word_embeddings=True; .*; add --encoder-only"),
    ],
)
def test_values_that_the_encoder_itself_refuses(kind, settings, complaint):
    with pytest.raises(UserError, match=f"^{complaint}"):
        read(kind, **settings)


@pytest.mark.parametrize("kind", ["modernbert", "eurobert"])
def test_another_pooling_of_a_head_is_refused(kind):
    head = families.of_config({"model_type": kind}).task_heads[CLASSIFICATION]
    with pytest.raises(UserError, match="^config.json has classifier_pooling='max'"):
        head.check({"classifier_pooling": "max"})


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def changed(folder, **settings):
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value != "left out"})
    )


def test_the_pooling_of_the_authors_code_of_eurobert_is_read(tokens, tmp_path):
    model = models.fine_tuned("classification", tokens, "eurobert")
    huggingface.write(tmp_path, model)
    changed(tmp_path, classifier_pooling="left out", clf_pooling="bos")
    restored, notes = huggingface.read(tmp_path)
    [task] = restored.settings["tasks"].values()
    assert task["objective"]["pooling"] == "cls" and not [note for note in notes if "clf_pooling" in note]


def test_a_base_without_a_kind_of_layer_is_left_out_with_a_note():
    """Neither transformers 4 nor 5 reads it."""
    config = {"model_type": "modernbert", "rope_theta": 500.0, "global_rope_theta": 1000.0}
    family = families.of_config(config)
    [note] = foreign_settings.notes_of_config(config, family.settings_read)
    assert "does not know and leaves out: 'rope_theta'" in note
    assert family.encoder_config(config).block.rotary_base == 1000.0


@pytest.mark.parametrize(
    "settings, noted",
    [
        ({"embedding_dropout": 0.1, "mlp_dropout": 0.0, "classifier_dropout": 0.1}, ["mlp_dropout", "attention_"]),
        ({"mlp_dropout": 0.1, "classifier_dropout": 0.2}, ["mlp_dropout=0.1 and classifier_dropout=0.2"]),
        (dict.fromkeys(("embedding_dropout", "mlp_dropout", "classifier_dropout", "attention_dropout"), 0.1), []),
    ],
)
def test_rates_of_dropout_that_are_not_kept_are_noted(tokens, tmp_path, settings, noted):
    rates = dict.fromkeys(("embedding_dropout", "mlp_dropout", "classifier_dropout", "attention_dropout"), 0.0)
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "modernbert"))
    changed(tmp_path, **rates | settings)
    ours, notes = huggingface.read(tmp_path)
    assert (ours.encoder.dropout, ours.encoder.attention_dropout) == (
        settings.get("embedding_dropout", 0.0),
        settings.get("attention_dropout", 0.0),
    )
    of_dropout = [note for note in notes if "_dropout" in note]
    assert len(of_dropout) == len(noted) and all(word in note for word, note in zip(noted, of_dropout))


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"pad_token_id": 1}, "pad_token_id=1, from which RoBERTa counts"),
        ({"pad_token_id": None}, "pad_token_id=None, after which"),
        ({"pad_token_id": 20}, "pad_token_id=20, after which RoBERTa counts its 21 rows"),
        ({"type_vocab_size": 0}, "type_vocab_size=0"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'"),
    ],
)
def test_positions_that_would_be_others_are_refused(tokens, tmp_path, settings, complaint):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "roberta"))
    changed(tmp_path, **settings)
    with pytest.raises(UserError, match=f"^config.json has {complaint}"):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    "kind, name, found",
    [
        ("deberta-v2", "mask_predictions.dense.weight", "left out, because no class of transformers reads it"),
        ("deberta-v2", "deberta.embeddings.word_embeddings._weight", "left out, because no class of transformers"),
        ("modernbert", "model.layers.0.attn_norm.weight", "ModernBERT has no norm before its first attention"),
    ],
)
def test_tensors_that_no_class_reads(tokens, tmp_path, kind, name, found):
    """Published files of DeBERTa have some; ModernBERT's never do."""
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, kind))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    weights.write(tmp_path / "model.safetensors", tensors | {name: np.ones((2, 2), np.float32)})
    if found.startswith("left out"):
        assert any(note.startswith(found) and name in note for note in huggingface.read(tmp_path)[1])
        return
    with pytest.raises(UserError, match=found):
        huggingface.read(tmp_path)
