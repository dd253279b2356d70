"""`bertjax/nano.py` and the package compute the same: on batches, model and optimizer of `configs/tiny.py:adamw`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import nano
from bertjax.config import config_file
from bertjax.training.resolve import open_feeds
from bertjax.training.setup import compile_chunk, init_state, make_setups
from tests import runs

TINY = f"{Path(__file__).parents[1]}/configs/tiny.py:adamw"
STEPS = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(setup of `tiny.py:adamw`, its first state, V, batches of the first steps); only the text is made up.

    Without a warm-up: after it, three steps change parameters by a thousandth and not by a millionth.
    """
    folder = tmp_path_factory.mktemp("tiny")
    corpus = runs.write_corpus(folder / "corpus.txt")
    places = [f"data.corpus={corpus}", f"data.store={folder}", "data.tokenizer.vocab_size=400"]
    feeds = open_feeds(config_file.load(TINY, [*places, "optimizer.warmup_steps=0", "runtime.unroll=False"]))
    [setup] = make_setups(feeds.config, feeds.store.tokenizer.vocab_size)
    rows = feeds.config.stages[0].batch
    feed = feeds.feed("train", feeds.config.stages[0].seq_len)
    batches = [feed.batch(np.arange(step * rows, (step + 1) * rows)) for step in range(STEPS)]
    return setup, init_state(setup), setup.encoder.vocab_size, batches


def test_three_steps(tiny):
    setup, state, vocab_size, batches = tiny
    train = compile_chunk(setup, "bert", 0)
    params = start = jax.tree.map(np.array, state["params"])
    mean = square = jax.tree.map(jnp.zeros_like, params)
    step = jax.jit(nano.train_step, static_argnums=(6, 7))
    for number, batch in enumerate(batches, 1):
        state, metrics = train(state, None, {name: values[None] for name, values in batch.items()})
        rate = float(metrics["learning_rate"][0])
        params, mean, square, loss = step(params, mean, square, number, batch, rate, vocab_size, setup.encoder.heads)
        assert float(loss) == pytest.approx(float(metrics["mlm_loss"][0] + metrics["nsp_loss"][0]), rel=1e-6)
        # The first moment is the mean of the gradients so far.
        [their_mean] = [part.mu for part in state["opt_state"] if hasattr(part, "mu")]
        assert norm(jax.tree.map(np.subtract, mean, their_mean)) < 1e-5 * norm(their_mean)
    assert largest(params, start) > 1e-3
    assert largest(params, state["params"]) < 1e-5


def test_a_training_learns_words_and_order():
    losses = nano.main(steps=200)
    assert losses[0] == pytest.approx(np.log(36) + np.log(2), abs=0.3) and np.mean(losses[-20:]) < 2


def norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree))))


def largest(tree, other) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True))
