"""Buckets: every example once, in few shapes, and results in the order of the examples."""

import jax
import numpy as np
import pytest

from bertjax.inference import predictor
from bertjax.inference.base import Pipeline, run
from bertjax.objectives.host import Output
from tests import ragged


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


@pytest.mark.parametrize("positions", [32, 256, predictor.POSITIONS])
def test_results_are_in_the_order_of_the_examples(monkeypatch, positions):
    """Per example and per token, whatever the batches; each bucket is traced for one shape."""
    monkeypatch.setattr(predictor, "POSITIONS", positions)
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

    class Added(Pipeline):
        vocabulary, seq_len = ragged.VOCABULARY, 90

        def features(self, placed):
            return {"added_BN": placed.examples_to_rows(placed.ragged.lengths)}

    engine = predictor.JaxEngine(jax.jit(function), np.int32(2), Added(None))
    results = run(engine, engine.pipeline, InMemory(whole), done.append)
    np.testing.assert_array_equal(results["sum"], 2 * np.add.reduceat(whole.tokens, whole.offsets[:-1]))
    np.testing.assert_array_equal(results["square"], whole.tokens**2)
    np.testing.assert_array_equal(results["both"], np.stack([whole.tokens, whole.token_index], axis=-1))
    np.testing.assert_array_equal(results["added"], lengths)
    assert sum(done) == len(whole.tokens) and len(shapes) == 3
