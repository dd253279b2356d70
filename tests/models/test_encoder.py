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
from bertjax.models.label_heads import DetectionHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
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


def close(actual, expected, tolerance=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def value_and_gradient(config, params, batch, **taps):
    """Return a number in which every hidden state counts differently, and its gradient."""

    def number(params):
        encoded = encode(params, batch, config, **taps)
        visible = encoded.hidden * (batch["examples_BT"][..., None] if "read_BK" not in taps else 1.0)
        return jnp.sum(jnp.sin(3 * visible)) + jnp.sum(encoded.pooled_BND**2)

    return jax.jit(jax.value_and_grad(number))(params)


@pytest.mark.parametrize("unroll", [False, True])
def test_only_what_xla_could_merge_is_protected_from_it(params, batch, unroll):
    """In a loop a barrier would be a copy of everything that is kept, and without one an unrolled pass keeps it all."""
    config = dataclasses.replace(CONFIG, execution=Execution(unroll=unroll, remat="dots"))
    gradient = jax.grad(lambda params: jnp.sum(encode(params, batch, config).hidden))
    assert ("optimization_barrier" in jax.jit(gradient).lower(params).as_text()) is unroll


def test_what_is_kept_of_a_layer(params, batch):
    """Under `dots` with dropout: its input, queries, keys, values, both sums before a norm, and what GELU reads."""
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.1, execution=Execution(remat="dots"))
    gradient = jax.grad(lambda params: jnp.sum(encode(params, batch, config, key=jax.random.key(3)).hidden))
    [forward, _] = [one for one in equations(jax.make_jaxpr(gradient)(params).jaxpr) if one.primitive.name == "scan"]
    shapes = [value.aval.shape for value in forward.outvars]
    stacked = sorted(shape[-1] for shape in shapes if shape[:-1] == (config.layers, *batch["tokens_BT"].shape))
    assert stacked == [config.width] * 6 + [config.feedforward]
    assert len(stacked) == len(shapes) - 1  # the other one is the last layer's output


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            yield from equations(value.jaxpr) if hasattr(value, "jaxpr") else ()


def test_rows_longer_than_the_position_table_are_refused(params):
    long = jnp.ones((2, CONFIG.max_positions + 1), jnp.int32)
    with pytest.raises(ValueError, match="^rows of 17 tokens exceed the 16 positions; cut them"):
        Encoder(CONFIG).apply({"params": params}, long)
    packed = jnp.arange(long.shape[1]) % CONFIG.max_positions
    Encoder(CONFIG).apply({"params": params}, long, positions_BT=jnp.broadcast_to(packed, long.shape))


def test_a_task_embedding_is_added_to_every_token(batch):
    config = dataclasses.replace(CONFIG, embeddings=BertEmbeddings(task_types=3))
    one, two = (dataclasses.replace(config, execution=Execution(task_type=number)) for number in (1, 2))
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    params = batches.filled(shapes["params"])
    _, gradient = value_and_gradient(one, params, batch)
    assert np.abs(gradient["embeddings"]["task"]).max(axis=1).astype(bool).tolist() == [False, True, False]
    embeddings = params["embeddings"]
    assert np.abs(encode(params, batch, two).hidden - encode(params, batch, one).hidden).max() > 0.1
    summed = {
        name: table + embeddings["task"][1] if name == "position" else table
        for name, table in embeddings.items()
        if name != "task"
    }
    close(encode(params | {"embeddings": summed}, batch).hidden, encode(params, batch, one).hidden, 1e-5)


def test_layers_start_different():
    params = fresh(CONFIG)
    kernels = params["layers"]["attention"]["query"]["kernel"]
    assert kernels.shape == (3, 16, 16) and float(jnp.abs(kernels[0] - kernels[1]).min()) > 0


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


def test_defaults_are_one_unpadded_example_a_row(params):
    tokens_BT = np.arange(10, 26).reshape(2, 8)
    spelled_out = {
        "tokens_BT": tokens_BT,
        "segments_BT": np.zeros((2, 8), np.int32),
        "positions_BT": np.tile(np.arange(8), (2, 1)),
        "examples_BT": np.ones((2, 8), np.int32),
        "summary_positions_BN": np.zeros((2, 1), np.int32),
    }
    short = jax.jit(Encoder(CONFIG).apply)({"params": params}, tokens_BT)
    jax.tree.map(np.testing.assert_array_equal, short, encode(params, spelled_out))


def test_bfloat16_is_for_activations_only(params, batch):
    config = dataclasses.replace(CONFIG, execution=Execution(dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh(config))} == {jnp.dtype("float32")}
    encoded = encode(params, batch, config)
    assert encoded.hidden.dtype == jnp.bfloat16
    _, gradient = value_and_gradient(config, params, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    difference = np.float32(encoded.hidden) - np.asarray(encode(params, batch).hidden)
    assert np.sqrt((difference**2).mean()) < 0.05


def test_dropout_follows_its_key(params, batch):
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.1)
    one, again, other = (encode(params, batch, config, key=jax.random.key(seed)).hidden for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(encode(params, batch, config).hidden, encode(params, batch).hidden)


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
def test_the_key_of_a_batch_is_that_of_dropout():
    objective = MaskedLMAndNextSentence()
    model = Model(dataclasses.replace(batches.ENCODER, dropout=0.5), objective.heads)
    params = batches.filled(shapes_of(model, objective))
    one, two, none = (
        np.asarray(model.apply({"params": params}, BATCH, key, method=objective.logits)[1])
        for key in (jax.random.key(1), jax.random.key(2), None)
    )
    assert (one != two).any() and (one != none).any()


def test_paths_of_parameters():
    objective = ReplacedTokens()
    model = Model(batches.ENCODER, objective.heads, GENERATOR)
    shapes = flatten_dict(shapes_of(model, objective), sep="/")
    assert {path.split("/")[0] for path in shapes} == {"encoder", "generator", "heads"}
    assert {path.split("/")[1] for path in shapes if path.startswith("heads/")} == {"mlm", "rtd"}
    assert not [path for path in shapes if path.startswith("generator/encoder/embeddings")]
    assert shapes["heads/mlm/transform/kernel"].shape == (8, 16)
    assert shapes["heads/rtd/transform/kernel"].shape == (16, 16)
    assert shapes["generator/encoder/layers/output/kernel"].shape == (3, 32, 8)


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


def test_a_head_of_another_dtype():
    config = dataclasses.replace(
        batches.ENCODER, execution=dataclasses.replace(batches.ENCODER.execution, dtype="bfloat16")
    )
    heads = {"exact": HeadSpec(Dense, {"features": 3, "dtype": "float32"}), "tag": HeadSpec(Dense, {"features": 3})}

    def logits(model, batch, key=None):
        hidden_BTD = model.encode(batch, key).hidden
        return {name: model.head(name, hidden_BTD) for name in heads}

    model = Model(config, heads)
    dtypes = jax.eval_shape(lambda key: model.init_with_output(key, BATCH, method=logits)[0], jax.random.key(0))
    assert (dtypes["exact"].dtype, dtypes["tag"].dtype) == (jnp.float32, jnp.bfloat16)


def test_a_model_without_a_generator_names_it():
    objective = ReplacedTokens()
    with pytest.raises(ValueError, match="^this model has no generator; build it with Model\\(..., generator=...\\)"):
        shapes_of(Model(batches.ENCODER, {"rtd": HeadSpec(DetectionHead)}), objective)


def test_logits_are_those_of_the_papers():
    config, batch = batches.ENCODER, batches.make(4)
    module = BERT().model(config)
    params = batches.filled(batches.param_shapes(BERT(), module.config, batch))
    logits = jax.jit(functools.partial(BERT().apply, module))(params, batch)
    mlm_BKV, nsp_B2 = reference.bert(params, config, batch)
    assert mlm_BKV.std() > 0.1 and nsp_B2.std() > 0.01
    np.testing.assert_allclose(logits["mlm"][..., : config.vocab_size], mlm_BKV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits["nsp"][:, 0], nsp_B2, rtol=1e-5, atol=1e-5)


def test_every_compared_parameter_matters():
    """Otherwise a part that both leave out would not be noticed."""
    config, batch = dataclasses.replace(batches.ENCODER, layers=2), batches.make(4)
    module = BERT().model(config)
    params = batches.filled(batches.param_shapes(BERT(), module.config, batch))

    def number(params):
        logits = BERT().apply(module, params, batch)
        return (logits["mlm"][..., : config.vocab_size] ** 2).sum() + (logits["nsp"] ** 2).sum()

    largest = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), jax.jit(jax.grad(number))(params))
    # Softmax is invariant to a constant in all keys, so only the bias of the keys has no effect.
    assert largest["encoder"]["layers"]["attention"]["key"].pop("bias") < 1e-3
    assert min(jax.tree.leaves(largest)) > 1e-3
