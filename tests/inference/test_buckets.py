"""Buckets: every example once, in few shapes, and results in the order of the examples."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.labeled.base import LabeledExamples
from bertjax.inference import buckets
from bertjax.objectives.outputs import Output
from tests import ragged


@given(st.lists(st.integers(2, 200), min_size=1, max_size=400), st.integers(200, 600))
def test_every_example_is_in_the_shortest_bucket_that_holds_it(lengths, longest):
    lengths = np.array(lengths)
    sorted_buckets = buckets.sort(lengths, longest)
    assert sorted(np.concatenate([bucket.members for bucket in sorted_buckets])) == list(range(len(lengths)))
    shapes = [bucket.seq_len for bucket in sorted_buckets]
    assert shapes == sorted(set(shapes)) and max(shapes) <= longest
    for bucket in sorted_buckets:
        inside = lengths[bucket.members]
        assert inside.max() <= bucket.seq_len
        shorter = [1 << power for power in range(3 if len(lengths) == 1 else 5, 10) if 1 << power < bucket.seq_len]
        assert inside.min() > max(shorter, default=0)
        assert bucket.rows & (bucket.rows - 1) == 0 or bucket.rows == buckets.POSITIONS // bucket.seq_len
        assert [len(members) for members in bucket.batches()][:-1] == [bucket.rows] * (
            -(-len(bucket.members) // bucket.rows) - 1
        )


def test_a_text_that_comes_alone_has_little_padding_and_few_shapes():
    shapes = {}
    for length in range(2, 513):
        [bucket] = buckets.sort(np.array([length]), longest=512)
        assert bucket.rows == 1 and length <= bucket.seq_len <= max(16, 1.5 * length)
        shapes.setdefault(bucket.seq_len, length)
    assert list(shapes) == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert [bucket.seq_len for bucket in buckets.sort(np.array([2, 2]), longest=512)] == [buckets.SHORTEST]
    assert [bucket.seq_len for bucket in buckets.sort(np.array([130]), longest=150)] == [150]


class InMemory:
    """`Examples` of a `Ragged`."""

    def __init__(self, whole):
        self._whole = whole

    def __len__(self):
        return len(self._whole.ids)

    def lengths(self, start=0, stop=None):
        return self._whole.lengths[start:stop].astype(np.int32)

    def take(self, indices):
        offsets = self._whole.offsets
        texts = [self._whole.tokens[offsets[index] : offsets[index + 1]] for index in indices]
        return ragged.of(texts, self._whole.ids[indices])


@pytest.mark.parametrize("positions", [32, 256, buckets.POSITIONS])
def test_results_are_in_the_order_of_the_examples(monkeypatch, positions):
    """Per example and per token, whatever the batches; each bucket is traced for one shape."""
    monkeypatch.setattr(buckets, "POSITIONS", positions)
    lengths = np.random.default_rng(0).integers(2, 91, 50)
    whole = ragged.random(lengths, np.arange(50))
    shapes, done = set(), []

    def function(params, batch):
        shapes.add(batch["tokens_BT"].shape)
        is_token_BT = batch["examples_BT"] > 0
        return {
            "sum": Output((batch["tokens_BT"] * is_token_BT).sum(axis=1)[:, None] * params, per="example"),
            "square": Output(batch["tokens_BT"] ** 2, per="token"),
            "both": Output(jax.numpy.stack([batch["tokens_BT"], batch["positions_BT"]], axis=-1), per="token"),
            "added": Output(batch["added_BN"], per="example"),
        }

    def features(placed):
        return {"added_BN": placed.examples_to_rows(placed.ragged.lengths)}

    results = buckets.run(jax.jit(function), np.int32(2), InMemory(whole), ragged.VOCABULARY, 90, features, done.append)
    np.testing.assert_array_equal(results["sum"], 2 * np.add.reduceat(whole.tokens, whole.offsets[:-1]))
    np.testing.assert_array_equal(results["square"], whole.tokens**2)
    np.testing.assert_array_equal(results["both"], np.stack([whole.tokens, whole.token_index], axis=-1))
    np.testing.assert_array_equal(results["added"], lengths)
    assert sum(done) == len(whole.tokens) and len(shapes) == 3


def test_a_group_is_in_one_row_and_a_pair_has_one_result(monkeypatch):
    """Four examples each, whatever their lengths; rows that are left over in a batch are empty."""
    monkeypatch.setattr(buckets, "POSITIONS", 256)
    lengths = np.random.default_rng(0).integers(2, 23, 64)
    whole = ragged.random(lengths, np.arange(64))

    def function(params, batch):
        last_BN = jax.numpy.max(batch["example_ids_BN"], axis=1, keepdims=True)
        return {
            "last": Output(jax.numpy.broadcast_to(last_BN, batch["example_ids_BN"].shape), per="example"),
            "last_of_row": Output(last_BN[:, 0], per="row"),
            "first": Output(batch["example_ids_BN"][:, ::2], per="pair"),
        }

    run = jax.jit(function), None, InMemory(whole), ragged.VOCABULARY, 90, lambda placed: {}, lambda tokens: None
    results = buckets.run(*run, group=4)
    np.testing.assert_array_equal(results["last"], np.arange(64) // 4 * 4 + 3)
    np.testing.assert_array_equal(results["last_of_row"], np.arange(16) * 4 + 3)
    np.testing.assert_array_equal(results["first"], np.arange(0, 64, 2))


def test_without_examples_every_output_is_there_and_empty():
    def function(params, batch):
        states = jax.numpy.ones((*batch["tokens_BT"].shape, 5), jax.numpy.float16)
        return {
            "token": Output(states, per="token"),
            "pair": Output(batch["example_ids_BN"][:, ::2], per="pair"),
            "row": Output(batch["tokens_BT"][:, 0], per="row"),
        }

    nothing = np.array([], np.int64)
    whole = LabeledExamples(ragged.random(np.array([9, 9]), np.arange(2)).take(nothing), [], nothing)
    results = buckets.run(
        jax.jit(function), None, whole, ragged.VOCABULARY, 90, lambda placed: {}, lambda tokens: None, group=2
    )
    assert {name: values.shape for name, values in results.items()} == {"token": (0, 5), "pair": (0,), "row": (0,)}
    assert results["token"].dtype == np.float16
