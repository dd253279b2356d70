"""The encoder: execution settings, padding, packed rows, and read positions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.models.model import HeadSpec, Model
from bertjax.models.other_heads import DetectionHead
from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests import batches
from tests.models import reference
from tests.models.encoding import CORE

CONFIG = batches.ENCODER


@pytest.fixture(scope="module")
def params() -> dict:
    shapes = jax.eval_shape(Encoder(CONFIG).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


@pytest.fixture(scope="module")
def batch() -> dict:
    return batches.make(3)


@functools.partial(jax.jit, static_argnames="config")
def encode(params, batch, config=CONFIG, **arguments):
    return Encoder(config).apply({"params": params}, *(batch[name] for name in CORE), **arguments)


@functools.partial(jax.jit, static_argnums=0)
def fresh(config):
    return Encoder(config).init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]


def value_and_gradient(config, params, batch, **taps):
    """Return a number in which every hidden state counts differently, and its gradient."""

    def number(params):
        encoded = encode(params, batch, config, **taps)
        visible = encoded.hidden * (batch["examples_BT"][..., None] if "read_BK" not in taps else 1.0)
        return jnp.sum(jnp.sin(3 * visible)) + jnp.sum(encoded.pooled_BND**2)

    return jax.jit(jax.value_and_grad(number))(params)


def test_tokens_of_the_padding_are_never_seen(params, batch):
    real_BT = batch["examples_BT"] > 0
    other = batch | {
        "tokens_BT": np.where(real_BT, batch["tokens_BT"], 55),
        "segments_BT": np.where(real_BT, batch["segments_BT"], 1),
        "positions_BT": np.where(real_BT, batch["positions_BT"], 9),
    }
    plain, altered = encode(params, batch), encode(params, other)
    np.testing.assert_array_equal(plain.hidden[real_BT], altered.hidden[real_BT])
    np.testing.assert_array_equal(plain.pooled_BND, altered.pooled_BND)
    assert np.abs(plain.hidden[~real_BT] - altered.hidden[~real_BT]).max() > 0.1


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("name, bad", [("tokens_BT", 100), ("tokens_BT", -1), ("positions_BT", 16), ("segments_BT", 2)])
def test_ids_without_a_row_are_refused_if_they_are_known(params, batch, name, bad, asarray):
    ids_BT = asarray(np.where(np.arange(16) == 3, bad, batch[name]))
    inputs = [(batch | {name: ids_BT})[each] for each in CORE]
    with pytest.raises(ValueError, match=f"^{name} has {bad}, and the model has rows 0 to [0-9]+ of these"):
        Encoder(CONFIG).apply({"params": params}, *inputs)
    assert jnp.isfinite(encode(params, batch | {name: ids_BT}).hidden).all(), "traced values are unknown"


def test_keys_of_both_styles_are_read(params, batch):
    config = dataclasses.replace(CONFIG, dropout=0.1)
    for split in (lambda key: key, lambda key: jax.random.split(key, 3)):
        old, new = (encode(params, batch, config, key=split(make(7))) for make in (jax.random.PRNGKey, jax.random.key))
        np.testing.assert_array_equal(old.hidden, new.hidden)


def test_bfloat16_is_for_activations_only(params, batch):
    config = dataclasses.replace(CONFIG, execution=Execution(dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh(config))} == {jnp.dtype("float32")}
    encoded = encode(params, batch, config)
    assert encoded.hidden.dtype == jnp.bfloat16
    _, gradient = value_and_gradient(config, params, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    difference = np.float32(encoded.hidden) - np.asarray(encode(params, batch).hidden)
    assert np.sqrt((difference**2).mean()) < 0.05


BATCH = batches.make()
GENERATOR = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(16), width=8, heads=1)


class MaskedLMAndNextSentence:
    """A minimal objective: heads, and a plain function of the bound model."""

    heads = {"mlm": HeadSpec(MaskedLMHead), "nsp": HeadSpec(PairHead, {"classes": 2})}

    def logits(self, model, batch, key=None):
        encoded = model.encode(batch, key, batch["mlm_positions_BK"])
        return model.head("mlm", encoded.hidden, model.word_VE), model.head("nsp", encoded.pooled_BND)


class ReplacedTokens:
    heads = {"mlm": HeadSpec(MaskedLMHead, on_generator=True), "rtd": HeadSpec(DetectionHead)}

    def logits(self, model, batch, key=None):
        guessed = model.encode_by_generator(batch, key, batch["mlm_positions_BK"]).hidden
        return model.head("mlm", guessed, model.word_VE), model.head("rtd", model.encode(batch, key).hidden)


def shapes_of(model, objective):
    create = lambda key: model.lazy_init(key, BATCH, method=objective.logits)["params"]  # noqa: E731
    return jax.eval_shape(create, jax.random.key(0))


@pytest.mark.slow
def test_an_objective_computes_with_a_function_of_the_bound_model():
    objective = MaskedLMAndNextSentence()
    model = Model(batches.ENCODER, objective.heads)
    params = batches.filled(shapes_of(model, objective))
    logits_BKV, logits_BNC = model.apply({"params": params}, BATCH, method=objective.logits)
    core = [BATCH[name] for name in CORE]
    encoded = Encoder(batches.ENCODER).apply({"params": params["encoder"]}, *core, read_BK=BATCH["mlm_positions_BK"])
    word_VE, heads = params["encoder"]["embeddings"]["word"], params["heads"]
    expected_BKV = MaskedLMHead(batches.ENCODER).apply({"params": heads["mlm"]}, encoded.hidden, word_VE)
    expected_BNC = PairHead(batches.ENCODER).apply({"params": heads["nsp"]}, encoded.pooled_BND)
    np.testing.assert_array_equal(logits_BKV, expected_BKV)
    np.testing.assert_array_equal(logits_BNC, expected_BNC)


@pytest.mark.slow
def test_initial_values_are_those_of_the_paths():
    """A part has the same initial values in every objective: Flax derives its key from its path."""
    objectives = MaskedLMAndNextSentence(), ReplacedTokens()
    first, second = (
        flatten_dict(
            jax.jit(lambda key, o=o: Model(batches.ENCODER, o.heads, GENERATOR).init(key, BATCH, method=o.logits))(
                jax.random.key(0)
            )["params"],
            sep="/",
        )
        for o in objectives
    )
    shared = [path for path in first.keys() & second.keys() if path.startswith("encoder/")]
    assert "encoder/layers/intermediate/kernel" in shared
    for path in shared:
        np.testing.assert_array_equal(first[path], second[path], err_msg=path)


def test_logits_are_those_of_the_papers():
    config, batch = batches.ENCODER, batches.make(4)
    module = BERT().model(config)
    params = batches.filled(batches.param_shapes(BERT(), module.config, batch))
    logits = jax.jit(functools.partial(BERT().apply, module))(params, batch)
    mlm_BKV, nsp_B2 = reference.bert(params, config, batch)
    assert mlm_BKV.std() > 0.1 and nsp_B2.std() > 0.01
    np.testing.assert_allclose(logits["mlm"][..., : config.vocab_size], mlm_BKV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits["nsp"][:, 0], nsp_B2, rtol=1e-5, atol=1e-5)
