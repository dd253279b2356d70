"""Masks and captured values reach every layer of every model, and cost nothing unless they are used."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import taps
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
