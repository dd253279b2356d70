"""ModernBERT, Ettin and mmBERT against transformers 4 and 5: values, gradients, bytes, and every setting."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.interop import families, foreign_settings, huggingface, names, tokenizers, weights
from bertjax.interop.outputs import reading_of, values
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from tests.interop import models

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

# Layers 0 and 3 are global, the others see 4 tokens to either side.
SIZES = {
    "num_hidden_layers": 5, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "local_attention": 8, "global_rope_theta": 1000.0, "local_rope_theta": 10.0,
    "embedding_dropout": 0.0, "pad_token_id": 0,
}  # fmt: skip
TOKENS, ROWS, LENGTH = models.trained(), 3, 40
FAMILY = families.of_config({"model_type": "modernbert"})


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms and biases too; return the model of transformers."""
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(vocab_size=TOKENS.vocab_size, **SIZES | settings)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"ModernBert{suffix}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizers.write(folder, TOKENS, LENGTH, segments=0)
    return model


@functools.cache
def batch() -> dict[str, np.ndarray]:
    draw, columns = np.random.default_rng(0), np.arange(LENGTH)
    real_BT = columns < np.array([[LENGTH], [29], [7]])
    tokens_BT = np.where(real_BT, draw.integers(5, TOKENS.vocab_size, (ROWS, LENGTH)), TOKENS.pad_id)
    zeros_BT = np.zeros_like(tokens_BT)
    return {
        "tokens_BT": tokens_BT,
        "segments_BT": zeros_BT,
        "positions_BT": np.where(real_BT, columns, 0),
        "examples_BT": real_BT.astype(np.int32),
        "example_ids_BN": np.arange(ROWS)[:, None],
        "summary_positions_BN": zeros_BT[:, :1],
    }


def inputs() -> dict:
    names_of_ours = {"input_ids": "tokens_BT", "attention_mask": "examples_BT"}
    return {name: torch.tensor(batch()[ours]) for name, ours in names_of_ours.items()}


def tensors_of(params: dict, encoder, parts: frozenset[str]) -> dict[str, np.ndarray]:
    flat = flatten_dict(jax.tree.map(np.asarray, params), sep="/")
    cut = {path: x[: encoder.vocab_size] if "/word" in path else x for path, x in flat.items()}
    return FAMILY.published(names.to_tensors(cut, FAMILY.names(encoder, parts)))


BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)


@pytest.mark.parametrize(
    "settings",
    [{}, BIASES, {"global_attn_every_n_layers": 1}, {"hidden_activation": "relu", "classifier_activation": "relu"}],
    ids=["published", "biases", "global", "relu"],
)
def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path, settings):
    model = make(tmp_path, "ForMaskedLM", **settings)
    ours, _ = huggingface.read(tmp_path)
    real_BT, labels_BT = batch()["examples_BT"] > 0, np.roll(batch()["tokens_BT"], 3)
    outputs = model(**inputs(), output_hidden_states=True)
    torch.nn.functional.cross_entropy(outputs.logits[real_BT], torch.tensor(labels_BT[real_BT])).backward()
    assert outputs.logits[real_BT].std() > 1

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        encoder, head = Encoder(ours.encoder), MaskedLMHead(ours.encoder)
        arrays = {name: batch()[name] for name in ("tokens_BT", "positions_BT", "examples_BT")}
        encoded, state = encoder.apply({"params": params["encoder"]}, **arrays, mutable=["captured"])
        word_VE = params["encoder"]["embeddings"]["word"]
        logits_BTV = head.apply({"params": params["heads"]["mlm"]}, encoded.hidden, word_VE)
        scores_BT = jnp.take_along_axis(jax.nn.log_softmax(logits_BTV), labels_BT[..., None], axis=-1)[..., 0]
        return -jnp.mean(scores_BT, where=real_BT), (state["captured"]["hidden"], encoded.hidden, logits_BTV)

    (_, (hidden, last_BTD, logits_BTV)), gradients = jax.jit(loss)(ours.params)
    for layer, theirs_BTD in enumerate(outputs.hidden_states[:5]):
        np.testing.assert_allclose(hidden[layer][real_BT], theirs_BTD.detach().numpy()[real_BT], atol=1e-4)
    theirs_BTD = model.model(**inputs()).last_hidden_state.detach().numpy()
    np.testing.assert_allclose(last_BTD[real_BT], theirs_BTD[real_BT], atol=1e-4)
    theirs_BTV = outputs.logits.detach().numpy()[real_BT]
    np.testing.assert_allclose(logits_BTV[real_BT][:, : ours.encoder.vocab_size], theirs_BTV, atol=1e-4)
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    own = tensors_of(gradients, ours.encoder, frozenset({"mlm"}))
    assert own.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert np.linalg.norm(own[name] - gradient) <= 1e-3 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("suffix", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("settings", [{}, BIASES], ids=["published", "biases"])
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix, settings):
    model = make(tmp_path / "theirs", suffix, **settings)
    ours, notes = huggingface.read(tmp_path / "theirs")
    assert not [note for note in notes if "does not know" in note]
    huggingface.write(tmp_path / "ours", ours)
    theirs, back = weights.read(tmp_path / "theirs"), weights.read(tmp_path / "ours")
    assert theirs.keys() == back.keys()
    assert all(tensor.tobytes() == back[name].tobytes() for name, tensor in theirs.items())
    opened = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    with torch.no_grad():
        expected, computed = model(**inputs()), opened(**inputs())
    assert all(torch.equal(expected[key], computed[key]) for key in expected)
    again, _ = huggingface.read(tmp_path / "ours")
    assert (again.encoder, again.settings) == (ours.encoder, ours.settings)


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
    model = make(tmp_path, suffix, **settings)
    ours, _ = huggingface.read(tmp_path)
    given = {name: tensor[None] for name, tensor in inputs().items()} if "Choice" in suffix else inputs()
    with torch.no_grad():
        outputs = model(**given)
    theirs = {name: outputs[name].numpy() for name in ("logits", "start_logits", "end_logits") if name in outputs}
    reading = reading_of(ours)
    computed, real_BT = values(ours, reading, batch()), batch()["examples_BT"] > 0
    assert computed.keys() == theirs.keys()
    for name, expected in theirs.items():
        rows = real_BT if reading.is_per_token(name) else slice(None)
        np.testing.assert_allclose(computed[name][rows], expected.reshape(computed[name].shape)[rows], atol=1e-4)
        assert expected.std() > 0.1
    # What a head pools is written back.
    huggingface.write(tmp_path / "back", ours)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
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
    # transformers 4 reads null as the base of the global layers.
    for base, settings in ((7.0, {"global_rope_theta": 7.0}), (160_000.0, {})):
        block = FAMILY.encoder_config(config_of(local_rope_theta=None, **settings)).block
        assert (block.rotary_base, block.local_rotary_base) == (base, base)


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
            for window in (1, 0, -2, None, True)
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
    ],
)
def test_rates_of_dropout_that_are_not_kept_are_noted(tmp_path, settings, lost):
    make(tmp_path / "theirs", "ForMaskedLM", **settings)
    ours, notes = huggingface.read(tmp_path / "theirs")
    rate = settings.get("embedding_dropout", 0.0)
    assert (ours.encoder.dropout, ours.encoder.attention_dropout) == (rate, settings.get("attention_dropout", 0.0))
    expected = [
        f"config.json has {lost}; bertjax has one rate of dropout outside of attention and takes "
        f"embedding_dropout={rate}: set model.dropout to train with another"
    ]
    assert [note for note in notes if "_dropout" in note] == (expected if lost else [])
    huggingface.write(tmp_path / "ours", ours)
    assert not [note for note in huggingface.read(tmp_path / "ours")[1] if "_dropout" in note]


def test_another_pooling_is_refused():
    with pytest.raises(UserError, match="^config.json has classifier_pooling='max'; bertjax's ModernBERT has cls and"):
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
