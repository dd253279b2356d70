"""Masked diffusion: the rate of each example, and that the loss is the mean over all orders of prediction."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from bertjax.data.batch import Draw, place
from bertjax.data.masking import UniformMasking, mask
from bertjax.objectives.pretraining.diffusion import MaskedDiffusion
from tests import batches, ragged
from tests.objectives import groups

OBJECTIVE = MaskedDiffusion()
ENCODER = dataclasses.replace(batches.ENCODER, init_stddev=0.5)
MASK = ragged.VOCABULARY.mask_id


def placed(lengths: list[int], epoch: int = 0):
    """Return examples of these lengths, one a row, and a draw."""
    examples = groups.examples(lengths, labels={})
    rows_BN = np.arange(len(lengths))[:, None]
    return place(examples, rows_BN, groups.T, ragged.VOCABULARY), Draw(3, np.full(len(lengths), epoch))


def chosen_counts(lengths: list[int], epoch: int, masking: UniformMasking = OBJECTIVE.masking) -> np.ndarray:
    examples, draw = placed(lengths, epoch)
    return np.bincount(examples.ragged.token_examples, mask(examples, draw, masking).chosen, minlength=len(lengths))


def test_the_number_of_predicted_tokens_is_uniform():
    counts = np.concatenate([chosen_counts([8] * 20, epoch) for epoch in range(200)])  # 6 tokens and two symbols
    times = np.bincount(counts.astype(int), minlength=7)
    assert times[0] == 0 and times.sum() == 4000
    np.testing.assert_allclose(times[1:], 4000 / 6, atol=4 * np.sqrt(4000 / 6))


def test_a_lower_rate_bounds_the_number():
    masking = UniformMasking(rate=0.5)
    counts = np.concatenate([chosen_counts([8] * 20, epoch, masking) for epoch in range(20)])
    assert set(counts.astype(int)) == {1, 2, 3}


def test_weights_sum_to_the_maskable_tokens_whatever_was_drawn():
    """So every example counts by its length, and the loss is in nats per token of the text."""
    for epoch in range(5):
        examples, draw = placed([8, 5, 12, 2], epoch)
        features = OBJECTIVE.features(examples, draw)
        np.testing.assert_allclose(OBJECTIVE.weights(features)["diffusion"], 6 + 3 + 10, rtol=1e-6)
        assert not features["diffusion_dropped_B"].any()


@pytest.mark.slow
def test_the_expected_loss_is_the_mean_over_all_orders():
    """The chain rule in every order of four tokens, against all subsets that the objective can draw."""
    examples, _ = placed([6])
    original = examples.ragged.tokens
    words = np.flatnonzero(~examples.ragged.special)
    core = groups.batch_of(OBJECTIVE, groups.examples([6], labels={}), [[0]])
    model = OBJECTIVE.model(ENCODER)
    params = batches.filled(batches.param_shapes(OBJECTIVE, ENCODER, core))

    @jax.jit
    def log_probabilities(tokens_BT):
        every = np.arange(groups.T, dtype=np.int32)[None]
        batch = core | {"tokens_BT": tokens_BT, "diffusion_positions_BK": every}
        return jax.nn.log_softmax(OBJECTIVE.apply(model, params, batch)["diffusion"][0])

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
        batch = core | OBJECTIVE.features(examples, draw)
        subset = tuple(np.flatnonzero(batch["tokens_BT"][0] == MASK).tolist())
        sums, _ = OBJECTIVE.terms(model, params, None, batch, None, False)
        np.testing.assert_allclose(sums["diffusion"], losses[subset], rtol=1e-5)
