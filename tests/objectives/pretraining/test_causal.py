"""The next token, and masked diffusion."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.data.batch import Draw, place
from bertjax.models import replacing
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.kernel_choice import choose_attention
from bertjax.models.streams import Streams
from bertjax.objectives.pretraining.causal import CausalLM, MaskedNextToken, NextToken
from bertjax.objectives.pretraining.diffusion import MaskedDiffusion
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.runtime.errors import UserError
from tests import batches, ragged
from tests.interop import models
from tests.objectives import groups

T = 16
ENCODER = dataclasses.replace(batches.ENCODER, direction="left_to_right", init_stddev=0.5)
OBJECTIVE = CausalLM()


def packed() -> dict[str, np.ndarray]:
    """One row with examples of 5, 4 and 3 tokens and padding."""
    inputs = groups.examples([5, 4, 3], labels={})
    batch = groups.batch_of(OBJECTIVE, inputs, [[0, 1, 2]])
    return {name: array[:, :T] if name.endswith(("_BT", "_BK")) else array for name, array in batch.items()}


def params_of(encoder: EncoderConfig, batch: dict) -> dict:
    return batches.filled(batches.param_shapes(OBJECTIVE, encoder, batch))


@pytest.mark.parametrize(
    "changes", [{}, batches.LOCAL, batches.ROTARY | {"sharing": "all"}], ids=["bert", "window", "rotary"]
)
def test_no_logits_depend_on_later_tokens_or_other_examples(changes):
    """Derivatives by the embedding of every token."""
    encoder = dataclasses.replace(ENCODER, **changes)
    batch = packed() | {"positions_BT": np.arange(T, dtype=np.int32)[None]}
    model, params = OBJECTIVE.model(encoder), params_of(encoder, batch)

    def logits_T(embedded_TD):
        with replacing.with_embeddings(embedded_TD[None]):
            logits_BTV = OBJECTIVE.apply(model, params, batch)[..., : encoder.vocab_size]
        return jnp.einsum("btv,v->t", logits_BTV, jnp.sin(jnp.arange(encoder.vocab_size)))

    embedded_TD = np.random.default_rng(1).normal(size=(T, encoder.width)).astype(np.float32)
    derivatives_TT = jnp.abs(jax.jit(jax.jacrev(logits_T))(embedded_TD)).sum(axis=-1)
    [examples_T] = batch["examples_BT"]
    columns = np.arange(T)
    sees_TT = (columns[:, None] >= columns) & (examples_T[:, None] == examples_T)
    assert not np.any(np.asarray(derivatives_TT)[~sees_TT])
    if encoder.block.global_every == 1:
        assert np.all(np.asarray(derivatives_TT)[sees_TT & (examples_T > 0)] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("read_BK", [None, np.array([[1, 7]])])
def test_the_last_token_of_an_example_is_its_summary(read_BK):
    """[CLS] sees only itself; whatever the batch says about it, a reader of pooled states learns of the whole text."""
    batch = packed()
    params = params_of(ENCODER, batch)["encoder"]
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")
    encoded = Encoder(ENCODER).apply({"params": params}, *(batch[name] for name in names), read_BK=read_BK)
    every = Encoder(ENCODER).apply({"params": params}, *(batch[name] for name in names)).hidden
    pooler = params["pooler"]
    expected = jnp.tanh(every[0, jnp.array([4, 8, 11])] @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(encoded.pooled_BND[0, :3], expected, atol=1e-5)


@pytest.fixture(scope="module")
def causal() -> Export:
    """An export with letters for tokens."""
    tokens = models.trained()
    config = from_dict(
        {
            "model": {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 40}
            | {"direction": "left_to_right"},
            "tasks": {"causal": {"objective": {"kind": "causal"}, "examples": {"kind": "full_sentences"}}},
            "stages": [{"seq_len": 40}],
        }
    )
    encoder = config.encoder(tokens.vocab_size, "cpu")
    params = batches.filled(batches.param_shapes(OBJECTIVE, encoder, packed()))
    return Export(to_dict(config), encoder, params, tokens, {})


def test_what_cannot_read_in_this_order_is_refused():
    with pytest.raises(UserError, match="^objective.kind=causal .* set model.direction=left_to_right"):
        OBJECTIVE.heads(batches.ENCODER)
    with pytest.raises(UserError, match="^objective.kind=permutation .* set model.direction=bidirectional"):
        PermutationLM().heads(dataclasses.replace(ENCODER, **batches.RELATIVE))
    with pytest.raises(UserError, match="^model.direction='left' is unknown; choose one of bidirectional, left_to_r"):
        EncoderConfig(direction="left")
    message = r"attention=splash does not compute an order of tokens \(model.direction\); use "
    with pytest.raises(UserError, match=f"^runtime.{message}"):
        choose_attention("splash", ENCODER, "tpu", "TPU v4")
    assert choose_attention("auto", ENCODER, "tpu", "TPU v4") == "plain"
    encoder = dataclasses.replace(ENCODER, max_positions=256, execution=Execution(attention="splash"))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(Encoder(encoder).init, jax.random.key(0), jnp.zeros((1, 256), jnp.int32))
    relative = Encoder(dataclasses.replace(ENCODER, **batches.RELATIVE))
    with pytest.raises(ValueError, match="^streams have an order of their own, and direction="):
        zeros = jnp.zeros((1, 4), jnp.int32)
        jax.eval_shape(lambda: relative.init(jax.random.key(0), zeros, streams=Streams(zeros, zeros)))


NEXT_TOKEN_ENCODER = dataclasses.replace(batches.ENCODER, vocab_size=ragged.VOCABULARY.size, init_stddev=0.5)
LENGTHS, ROWS = [9, 5, 12], [[0, 1], [2, -1]]


def made(objective):
    inputs = groups.examples(LENGTHS, labels={})
    batch = groups.batch_of(objective, inputs, ROWS)
    params = batches.filled(batches.param_shapes(objective, NEXT_TOKEN_ENCODER, batch))
    return batch, params


def test_the_causal_task_computes_what_a_causal_encoder_does():
    batch, params = made(NextToken())
    model, causal = (
        NextToken().model(NEXT_TOKEN_ENCODER),
        CausalLM().model(dataclasses.replace(NEXT_TOKEN_ENCODER, direction="left_to_right")),
    )
    np.testing.assert_array_equal(NextToken().apply(model, params, batch), CausalLM().apply(causal, params, batch))


@pytest.mark.slow
def test_a_masked_token_is_predicted_from_the_state_before_it():
    batch, params = made(MaskedNextToken())
    model = MaskedNextToken().model(NEXT_TOKEN_ENCODER)
    [logits_BKV] = MaskedNextToken().apply(model, params, batch).values()

    # The same parameters under the name of masked language modeling's head, read at every column.
    every_BK = np.broadcast_to(np.arange(groups.T, dtype=np.int32), batch["tokens_BT"].shape)
    renamed = params | {"heads": {"mlm": params["heads"]["clm"]}}
    all_BTV = MaskedLM().apply(MaskedLM().model(NEXT_TOKEN_ENCODER), renamed, batch | {"mlm_positions_BK": every_BK})[
        "mlm"
    ]
    used = 0
    for row, slot in zip(*np.nonzero(batch["mntp_weights_BK"]), strict=True):
        column = batch["mntp_positions_BK"][row, slot]
        np.testing.assert_allclose(logits_BKV[row, slot], all_BTV[row, column - 1], atol=1e-5)
        assert batch["examples_BT"][row, column - 1] == batch["examples_BT"][row, column]
        used += 1
    assert used >= len(LENGTHS)


DIFFUSION_OBJECTIVE = MaskedDiffusion()
DIFFUSION_ENCODER = dataclasses.replace(batches.ENCODER, init_stddev=0.5)
MASK = ragged.VOCABULARY.mask_id


def placed(lengths: list[int], epoch: int = 0):
    """Return examples of these lengths, one a row, and a draw."""
    examples = groups.examples(lengths, labels={})
    rows_BN = np.arange(len(lengths))[:, None]
    return place(examples, rows_BN, groups.T, ragged.VOCABULARY), Draw(3, np.full(len(lengths), epoch))


def test_weights_sum_to_the_maskable_tokens_whatever_was_drawn():
    """So every example counts by its length, and the loss is in nats per token of the text."""
    for epoch in range(5):
        examples, draw = placed([8, 5, 12, 2], epoch)
        features = DIFFUSION_OBJECTIVE.features(examples, draw)
        np.testing.assert_allclose(DIFFUSION_OBJECTIVE.weights(features)["diffusion"], 6 + 3 + 10, rtol=1e-6)
        assert not features["diffusion_dropped_B"].any()


@pytest.mark.slow
def test_the_expected_loss_is_the_mean_over_all_orders():
    """The chain rule in every order of four tokens, against all subsets that the objective can draw."""
    examples, _ = placed([6])
    original = examples.ragged.tokens
    words = np.flatnonzero(~examples.ragged.special)
    core = groups.batch_of(DIFFUSION_OBJECTIVE, groups.examples([6], labels={}), [[0]])
    model = DIFFUSION_OBJECTIVE.model(DIFFUSION_ENCODER)
    params = batches.filled(batches.param_shapes(DIFFUSION_OBJECTIVE, DIFFUSION_ENCODER, core))

    @jax.jit
    def log_probabilities(tokens_BT):
        every = np.arange(groups.T, dtype=np.int32)[None]
        batch = core | {"tokens_BT": tokens_BT, "diffusion_positions_BK": every}
        return jax.nn.log_softmax(DIFFUSION_OBJECTIVE.apply(model, params, batch)["diffusion"][0])

    def log_of(hidden: frozenset[int], token: int) -> float:
        """log p(token | the tokens that are not hidden)"""
        tokens_T = core["tokens_BT"][0].copy()
        tokens_T[: len(original)] = original
        tokens_T[list(hidden)] = MASK
        return float(log_probabilities(tokens_T[None])[token, original[token]])

    orders = [
        -sum(log_of(frozenset(order[place:]), token) for place, token in enumerate(order))
        for order in itertools.permutations(words.tolist())
    ]

    # All draws of the objective: a number l, then a subset of that size, each with weight n / l on its tokens.
    losses, n = {}, len(words)
    for number in range(1, n + 1):
        for subset in itertools.combinations(words.tolist(), number):
            losses[subset] = -n / number * sum(log_of(frozenset(subset), token) for token in subset)
    by_number = [np.mean([loss for subset, loss in losses.items() if len(subset) == size]) for size in range(1, n + 1)]
    np.testing.assert_allclose(np.mean(by_number), np.mean(orders), rtol=1e-5)

    # What the objective computes for a draw is one of these losses.
    for epoch in range(4):
        examples, draw = placed([6], epoch)
        batch = core | DIFFUSION_OBJECTIVE.features(examples, draw)
        subset = tuple(np.flatnonzero(batch["tokens_BT"][0] == MASK).tolist())
        sums, _ = DIFFUSION_OBJECTIVE.terms(model, params, None, batch, None, False)
        np.testing.assert_allclose(sums["diffusion"], losses[subset], rtol=1e-5)
