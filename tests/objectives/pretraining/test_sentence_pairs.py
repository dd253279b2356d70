"""Labels of examples beside masked tokens: batches, terms, metrics and baselines of each kind."""

import jax
import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.formats import FORMATS
from bertjax.models.config import EncoderConfig
from bertjax.objectives import OBJECTIVES
from bertjax.training.feeds import Feeds

SEQ_LEN, ROWS = 48, 250


@pytest.mark.parametrize(
    "objective_kind, format_kind, term, classes",
    [
        ("bert", "segment_pairs", "nsp", 2),
        ("bert", "sentence_pairs", "nsp", 2),
        ("sentence_order", "sentence_order", "sop", 2),
        ("sentence_structure", "sentence_structure", "structure", 3),
        ("sentence_distance", "sentence_distance", "distance", 3),
        ("sentence_reordering", "sentence_reordering", "reordering", 9),
    ],
)
def test_the_label_of_the_examples_is_what_the_head_learns(store, objective_kind, format_kind, term, classes):
    objective, examples = OBJECTIVES.class_of(objective_kind)(), FORMATS.class_of(format_kind)()
    config = Config(tasks={"task": Task(objective, examples, row_examples=1)})
    feed = Feeds(config, store).feed("train", SEQ_LEN)
    (plan,) = feed.plans
    vocabulary = feed.vocabulary
    batch = feed.batch(np.append(np.arange(ROWS), -1))
    (label,) = plan.examples.take(batch["example_ids_BN"][:ROWS, 0]).labels.values()
    assert set(label) == set(range(classes))
    np.testing.assert_array_equal(batch[f"{term}_labels_BN"][:ROWS, 0], label)
    np.testing.assert_array_equal(batch[f"{term}_weights_BN"][:, 0], [1] * ROWS + [0])

    encoder = EncoderConfig(
        vocab_size=vocabulary.size, layers=1, width=16, heads=2, feedforward=16, max_positions=SEQ_LEN
    )
    module = objective.model(encoder)
    params = jax.jit(lambda key: objective.init(module, key, batch))(jax.random.key(0))
    assert set(params["heads"]) == {"mlm", term}

    @jax.jit
    def compute(params, batch):
        sums, metrics = objective.terms(module, params, None, batch, jax.random.key(0), False)
        return objective.apply(module, params, batch)[term], sums, metrics

    logits_BNC, sums, metrics = compute(params, batch)
    logits_BNC = np.asarray(logits_BNC, np.float64)[:ROWS, 0]
    assert logits_BNC.shape == (ROWS, classes)
    log_share = logits_BNC - np.log(np.exp(logits_BNC).sum(-1, keepdims=True))
    np.testing.assert_allclose(sums[term], -log_share[np.arange(ROWS), label].sum(), rtol=1e-5)
    right, weight = metrics[f"{term}_accuracy"]
    assert (right, weight) == (np.sum(logits_BNC.argmax(-1) == label), ROWS)
    assert set(sums) == set(objective.weights(batch)) == {"mlm", term}
    baselines = objective.baselines(batch, np.ones(vocabulary.size))
    right, weight = baselines[f"{term}_majority"]
    assert right.tolist() == [np.sum(label == number) for number in range(classes)] and weight == ROWS
    assert "unigram_loss" in baselines
