"""Masks and captured values reach every layer of every model, and cost nothing unless they are used."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import cut, taps
from bertjax.models.bert import BertEmbeddings
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from tests import batches

CONFIG, BATCH = batches.ENCODER, batches.make(3)
LAYERS, HEADS = CONFIG.layers, CONFIG.heads
ONES = {"head_mask": jnp.ones((LAYERS, HEADS)), "feedforward_mask": jnp.ones((LAYERS, CONFIG.feedforward))}
MODEL = Model(CONFIG, {"mlm": HeadSpec(MaskedLMHead), "label": HeadSpec(Dense, {"features": 3})})


def masked_lm(model, batch, key=None):
    hidden_BKD = model.encode(batch, key, batch["mlm_positions_BK"]).hidden
    return model.head("mlm", hidden_BKD, model.word_VE)


def tags(model, batch, key=None):
    return model.head("label", model.encode(batch, key).hidden)


def classes(model, batch, key=None):
    """Return logits as of a fine-tuned classifier, whose last layer computes only the pooled [CLS]."""
    nothing_more_BK = jnp.zeros((len(batch["tokens_BT"]), 0), jnp.int32)
    return model.head("label", model.encode(batch, key, nothing_more_BK).pooled_BND)


@functools.cache
def params_of(config=CONFIG):
    """Params of all three functions together."""
    model = MODEL.clone(config=config)

    def everything(model, batch):
        return masked_lm(model, batch), classes(model, batch)

    return batches.filled(jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH, method=everything))["params"])


@functools.partial(jax.jit, static_argnames=("function", "config"))
def logits(function, taps=None, params=None, batch=BATCH, config=CONFIG):
    params = jax.tree.map(jnp.asarray, params or params_of(config))
    variables = {"params": params} | ({"taps": {"encoder": taps}} if taps else {})
    return MODEL.clone(config=config).apply(variables, batch, method=function)


@functools.partial(jax.jit, static_argnames=("function", "config", "names"))
def captured(function, names=taps.NAMES, config=CONFIG, batch=BATCH, masks=None):
    variables = {"params": params_of(config), "captured": {"encoder": dict.fromkeys(names)}}
    variables |= {"taps": {"encoder": masks}} if masks else {}
    model = MODEL.clone(config=config)
    return model.apply(variables, batch, method=function, mutable=["captured"])[1]["captured"]["encoder"]


def lowered(function, **variables) -> str:
    """The program of a forward and backward pass, before any compiler removes what nothing reads."""

    def loss(params):
        outputs = MODEL.apply({"params": params} | variables, BATCH, method=function)
        return jnp.sum(outputs[0] if isinstance(outputs, tuple) else outputs)

    return jax.jit(jax.grad(loss)).lower(params_of()).as_text()


@pytest.mark.slow
@pytest.mark.parametrize("function", [masked_lm, tags, classes])
def test_unused_taps_leave_the_program_as_it_is(function, monkeypatch):
    plain, masked = lowered(function), lowered(function, taps={"encoder": ONES})
    assert plain != masked
    monkeypatch.setattr(taps, "scale_heads", lambda module, context_BQHD, *_: context_BQHD)
    monkeypatch.setattr(taps, "scale_feedforward", lambda module, expanded_BQF, *_: expanded_BQF)
    monkeypatch.setattr(taps, "capture", lambda *_: None)
    monkeypatch.setattr(taps, "masks_of", lambda *_: {})
    monkeypatch.setattr(taps, "names_of", lambda *_: ())
    jax.clear_caches()
    assert lowered(function) == plain


@pytest.mark.slow
@pytest.mark.parametrize("function", [masked_lm, tags, classes])
@pytest.mark.parametrize("name", taps.MASKS)
def test_a_mask_of_ones_changes_nothing(function, name):
    np.testing.assert_array_equal(logits(function, {name: ONES[name]}), logits(function))


@pytest.mark.parametrize("layer, head", [(0, 1), (LAYERS - 1, 0)])
@pytest.mark.parametrize("function", [masked_lm, tags, classes])
def test_a_head_mask_of_zero_removes_only_that_head(function, layer, head):
    """The effect equals that of zeros in the output projection of that head."""
    width = CONFIG.width // HEADS
    params = jax.tree.map(np.array, params_of())
    params["encoder"]["layers"]["attention"]["output"]["kernel"][layer, head * width : (head + 1) * width] = 0.0
    masked = logits(function, {"head_mask": ONES["head_mask"].at[layer, head].set(0.0)})
    np.testing.assert_allclose(masked, logits(function, params=params), rtol=1e-5, atol=1e-5)
    assert np.abs(masked - logits(function)).max() > 1e-3


@pytest.mark.parametrize("function", [masked_lm, tags, classes])
def test_a_layer_mask_of_zero_skips_the_layer(function):
    np.testing.assert_array_equal(logits(function, {"layer_mask": jnp.ones(LAYERS)}), logits(function))
    shallow = dataclasses.replace(CONFIG, layers=LAYERS - 1)
    for layer in (0, LAYERS - 1):
        encoder, _ = cut.layers(params_of()["encoder"], CONFIG, [kept for kept in range(LAYERS) if kept != layer])
        skipped = logits(function, {"layer_mask": jnp.ones(LAYERS).at[layer].set(0.0)})
        expected = logits(function, params=params_of() | {"encoder": encoder}, config=shallow)
        np.testing.assert_allclose(skipped, expected, rtol=1e-5, atol=1e-5)


def test_a_feedforward_mask_of_zero_removes_only_that_channel():
    params = jax.tree.map(np.array, params_of())
    params["encoder"]["layers"]["output"]["kernel"][1, 5] = 0.0
    masked = logits(tags, {"feedforward_mask": ONES["feedforward_mask"].at[1, 5].set(0.0)})
    np.testing.assert_allclose(masked, logits(tags, params=params), rtol=1e-5, atol=1e-6)
    assert np.abs(masked - logits(tags)).max() > 1e-4


def test_the_importance_of_heads_in_a_classifier_is_one_gradient():
    """The gradient of a task's loss with respect to a head mask, checked by finite differences."""

    @jax.jit
    def loss(head_mask_LH):
        logits_BNC = logits.__wrapped__(classes, {"head_mask": head_mask_LH})
        return -jnp.mean(jax.nn.log_softmax(logits_BNC)[..., 1])

    gradient_LH = jax.grad(loss)(ONES["head_mask"])
    assert np.abs(gradient_LH).min() > 0.0
    for layer, head in np.ndindex(LAYERS, HEADS):
        step_LH = jnp.zeros((LAYERS, HEADS)).at[layer, head].set(0.05)
        slope = (loss(1.0 + step_LH) - loss(1.0 - step_LH)) / 0.1
        np.testing.assert_allclose(gradient_LH[layer, head], slope, rtol=0.05, atol=2e-4)


PACKED = {
    "tokens_BT": np.arange(10, 26, dtype=np.int32)[None].repeat(2, axis=0),
    "segments_BT": np.zeros((2, 16), np.int32),
    "positions_BT": np.array([[*range(7), *range(8), 0]] * 2, np.int32),
    "examples_BT": np.array([[1] * 7 + [2] * 8 + [0]] * 2, np.int32),
    "summary_positions_BN": np.array([[0, 7]] * 2, np.int32),
    "mlm_positions_BK": np.array([[2, 3, 9, 14]] * 2, np.int32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", taps.MASKS)
def test_a_mask_per_example_acts_on_its_example_only(name):
    masks = {name: jnp.ones((*ONES[name].shape, 2, 2)).at[1, 0, 0, 1].set(0.0)}
    plain, masked = (np.asarray(logits(tags, taps, batch=PACKED)) for taps in (None, masks))
    changed_BT = np.abs(masked - plain).max(axis=-1) > 0
    np.testing.assert_array_equal(changed_BT, (PACKED["examples_BT"] == 2) & [[True], [False]])
    for function, columns in ((masked_lm, [2, 3]), (classes, [1])):
        plain, masked = (np.asarray(logits(function, t, batch=PACKED)) for t in (None, masks))
        changed = np.abs(masked - plain).max(axis=-1) > 0
        np.testing.assert_array_equal(np.flatnonzero(changed[0]), columns)
        assert not changed[1].any()


def test_captured_layers():
    values = captured(tags)
    shapes = {name: value.shape for name, value in values.items()}
    assert shapes == {
        "hidden": (4, 3, 16, 16),
        "attention": (3, 3, 2, 16, 16),
        **dict.fromkeys(("queries", "keys", "values", "context"), (3, 3, 16, 2, 8)),
        "feedforward": (3, 3, 16, 32),
    }
    np.testing.assert_allclose(values["attention"].sum(axis=-1), 1.0, rtol=1e-5)
    examples_BT = BATCH["examples_BT"]
    unseen_BTT = examples_BT[:, :, None] != examples_BT[:, None, :]
    assert np.abs(np.where(unseen_BTT[:, None], values["attention"], 0)).max() == 0
    last = MODEL.apply({"params": params_of()}, BATCH, method=lambda model, batch: model.encode(batch).hidden)
    np.testing.assert_allclose(values["hidden"][-1], last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, batches.ROTARY, batches.GROUPED], ids=["learned", "rotary", "grouped"])
def test_captured_values_recompute_the_attention_output(changes):
    config = dataclasses.replace(CONFIG, **changes)
    values = captured(tags, config=config)
    logits_LBHTT = np.einsum("lbqhc,lbthc->lbhqt", values["queries"], values["keys"]) / np.sqrt(8)
    examples_BT = BATCH["examples_BT"]
    seen_BTT = examples_BT[:, :, None] == examples_BT[:, None, :]
    attention = jax.nn.softmax(np.where(seen_BTT[:, None], logits_LBHTT, -1e30))
    np.testing.assert_allclose(attention, values["attention"], rtol=1e-4, atol=1e-6)
    context = np.einsum("lbhqt,lbthc->lbqhc", attention, values["values"])
    np.testing.assert_allclose(context, values["context"], rtol=1e-4, atol=1e-5)


def test_captured_context_and_feedforward_are_masked():
    masks = {"head_mask": ONES["head_mask"].at[1, 0].set(0.0), "feedforward_mask": ONES["feedforward_mask"] * 2.0}
    plain, masked = captured(tags), captured(tags, masks=masks)
    assert np.abs(masked["context"][1, :, :, 0]).max() == 0 and np.abs(masked["context"][1, :, :, 1]).min() > 0
    first_layer = dict.fromkeys(("head_mask",), ONES["head_mask"]) | {"feedforward_mask": masks["feedforward_mask"]}
    doubled = captured(tags, masks=first_layer)["feedforward"][0]
    np.testing.assert_array_equal(doubled, 2.0 * plain["feedforward"][0])


def test_an_encoder_that_reads_positions_captures_the_last_layer_only_there():
    whole, values = captured(tags), captured(masked_lm)
    last, columns_BK = values.pop("last"), BATCH["mlm_positions_BK"]
    read_BQ = np.concatenate([BATCH["summary_positions_BN"], columns_BK], axis=1)
    for name in taps.NAMES:
        np.testing.assert_allclose(values[name], whole[name][:-1], rtol=1e-5, atol=1e-6)
        expected = whole[name][-1]
        if name == "attention":
            expected = np.take_along_axis(expected, read_BQ[:, None, :, None], axis=2)
        elif name not in ("keys", "values"):
            extra = (None,) * (expected.ndim - 2)
            expected = np.take_along_axis(expected, read_BQ[(..., *extra)], axis=1)
        np.testing.assert_allclose(last[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_generator_has_taps_of_its_own():
    narrow = dataclasses.replace(CONFIG, embeddings=BertEmbeddings(16), width=8, heads=1)
    model = Model(CONFIG, generator=narrow)

    def hidden(model, batch):
        return model.encode(batch).hidden, model.encode_by_generator(batch).hidden

    params = batches.filled(jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH, method=hidden))["params"])
    masks = {"generator": {"encoder": {"head_mask": jnp.zeros((LAYERS, 1))}}}
    run = functools.partial(model.apply, method=hidden, mutable=["captured"])
    plain, _ = run({"params": params}, BATCH)
    masked, state = run({"params": params, "taps": masks}, BATCH)
    np.testing.assert_array_equal(masked[0], plain[0])
    assert np.abs(masked[1] - plain[1]).max() > 1e-3
    assert state["captured"]["generator"]["encoder"]["queries"].shape == (3, 3, 16, 1, 8)


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"taps": {"head_masks": jnp.ones((3, 2))}}, "^taps has no 'head_masks'; choose from head_mask, "),
        ({"taps": {"head_mask": jnp.ones((2, 3))}}, r"^head_mask has shape \(2, 3\); pass \[L, H\] or \[L, H, B, N\]"),
        (
            {"taps": {"feedforward_mask": jnp.ones((3, 2))}},
            r"^feedforward_mask has shape \(3, 2\); pass \[L, F\] or \[L, F, B, N\] with",
        ),
        ({"taps": {"layer_mask": jnp.ones(2)}}, r"^layer_mask has shape \(2,\); pass \[L\], which is \(3,\)"),
        ({"captured": {"logits": None}}, "^captured has no logits; choose from hidden, attention"),
    ],
)
def test_invalid_taps(variables, message):
    variables = {"params": params_of()["encoder"]} | variables
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            functools.partial(Encoder(CONFIG).apply, mutable=["captured"]), variables, jnp.zeros((1, 4), jnp.int32)
        )
