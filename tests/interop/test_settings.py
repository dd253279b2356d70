"""`config.json` of every family: published settings give the preset, and what bertjax does not compute is refused."""

import dataclasses
import json

import pytest

from bertjax.interop import families, foreign_settings, huggingface
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


_FULL, _BOTH = ["full_attention"] * 22, (["full_attention"] + ["sliding_attention"]) * 11


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
    "mpnet": [*({"relative_attention_num_buckets": 16}, {"hidden_act": "relu"}, {"max_position_embeddings": 2})],
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


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"pad_token_id": 1}, "pad_token_id=1; the tokenizer has 0"),
        ({"pad_token_id": None}, "pad_token_id=None; RoBERTa counts"),
        ({"pad_token_id": 20}, "pad_token_id=20; RoBERTa counts its 21 rows after it"),
        ({"type_vocab_size": 0}, "type_vocab_size=0"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'"),
    ],
)
def test_positions_that_would_be_others_are_refused(tokens, tmp_path, settings, complaint):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "roberta"))
    changed(tmp_path, **settings)
    with pytest.raises(UserError, match=f"^config.json has {complaint}"):
        huggingface.read(tmp_path)
