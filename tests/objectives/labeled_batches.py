"""A labeled file as a batch of all its rows, and a small model for it."""

from typing import NamedTuple

import jax
import numpy as np

from bertjax.config.config import Config, Task
from bertjax.data.labeled.base import LabeledExamples, LabeledFormat
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.tokenizer import Tokenizer
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Objective
from bertjax.training.feeds import Feeds


class Labeled(NamedTuple):
    """A batch of all rows of the training file, and its examples."""

    batch: dict[str, np.ndarray]
    examples: LabeledExamples

    def records(self) -> list[dict]:
        """The record of every example."""
        return [self.examples.records[number] for number in self.examples.record_of]


def load(format: LabeledFormat, objective: Objective, tokenizer: Tokenizer, seq_len: int, slots: int) -> Labeled:
    """The rows, `slots` examples in each at most."""
    task = Task(objective, format, row_examples=slots)
    feed = Feeds(Config(tasks={"task": task}), LabeledSource(format, tokenizer)).feed("train", seq_len)
    (plan,) = feed.plans
    return Labeled(feed.batch(np.arange(plan.counts.rows)), plan.examples)


def encoder(tokenizer: Tokenizer, seq_len: int) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        layers=2,
        width=16,
        heads=2,
        feedforward=32,
        max_positions=seq_len,
        dropout=0.0,
        attention_dropout=0.0,
        init_stddev=0.3,
    )


def assert_packing_changes_nothing(
    format: LabeledFormat, objective: Objective, tokenizer: Tokenizer, seq_len: int
) -> None:
    """The same terms, metrics and outputs from rows of several examples as from rows of one."""
    alone, packed = (load(format, objective, tokenizer, seq_len, slots) for slots in (1, 4))
    assert packed.batch["example_ids_BN"].shape[1] > 2 and len(packed.batch["tokens_BT"]) < len(alone.examples)
    module = objective.model(encoder(tokenizer, seq_len))
    params = jax.jit(lambda key: objective.init(module, key, alone.batch))(jax.random.key(0))
    terms = jax.jit(lambda batch: objective.terms(module, params, None, batch, jax.random.key(0), False))
    (sums, metrics), (sums_packed, metrics_packed) = terms(alone.batch), terms(packed.batch)
    for term in sums:
        assert 1.0 < sums[term] < np.inf
        np.testing.assert_allclose(sums_packed[term], sums[term], rtol=1e-5)
        np.testing.assert_array_equal(objective.weights(packed.batch)[term], objective.weights(alone.batch)[term])
    for name, pair in metrics.items():
        np.testing.assert_allclose(metrics_packed[name], pair, rtol=1e-5)
    outputs, outputs_packed = (outputs_of(objective, module, params, labeled) for labeled in (alone, packed))
    for name in outputs:
        np.testing.assert_allclose(outputs_packed[name], outputs[name], rtol=2e-4, atol=1e-5)


def outputs_of(objective: Objective, module, params, labeled: Labeled) -> dict[str, np.ndarray]:
    """Return a model's outputs for every token of the examples, in the order of the examples."""
    batch, ragged = labeled.batch, labeled.examples.ragged
    outputs = {}
    for name, values in jax.jit(lambda batch: objective.outputs(module, params, batch))(batch).items():
        values = np.asarray(values.array)
        of_tokens = np.zeros((len(ragged.tokens), *values.shape[2:]), values.dtype)
        for row, slots in enumerate(batch["example_ids_BN"]):
            for slot, example in enumerate(slots):
                if example >= 0:
                    own = batch["examples_BT"][row] == slot + 1
                    of_tokens[ragged.offsets[example] : ragged.offsets[example + 1]] = values[row, own]
        outputs[name] = of_tokens
    return outputs
