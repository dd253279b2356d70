"""Linear probes on all layers at once: how well softmax regression on frozen states predicts labels.

The same probes give three results:

- Accuracy on held-out words (Alain & Bengio, 2017, arXiv 1610.01644).
- Selectivity: accuracy minus accuracy on a control task (Hewitt & Liang, 2019, section 2, arXiv 1909.03368). Control
  labels are random but equal for all occurrences of a word, so only memorizing words helps.
- Description length of the labels given the states, as an online code (Voita & Titov, 2020, section 2.2.2, arXiv
  2003.12298). Labels are sent in portions, each coded by the probe that was trained on the portions before.

States are computed once and stored. The probes for all layers, tasks and penalties are one jitted step over `_BATCH`
words. Each layer uses the penalty with the shortest code, which depends on training labels only.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

# L2 penalties to try: factors of the squared kernel norm, added to the mean cross-entropy in nats.
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
# Label fractions after which a new probe is trained, as in the authors' code. The first portion is sent without a
# probe.
FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
_SMALLEST_PORTION = 16
_BATCH, _EPOCHS, _FEWEST_STEPS, _LEARNING_RATE = 256, 8, 150, 0.01


class Labels(NamedTuple):
    """Word labels for several tasks with the same classes.

    Attributes:
      states: float32 [n, L, D], for example a memory-mapped file; read in slices.
      numbers: int32 [n, K], each word's class in each of K tasks.
    """

    states: np.ndarray
    numbers: np.ndarray


class _Probes(NamedTuple):
    """kernel [L, D, K * R * C] and bias [L, K * R * C] for R penalties; mean and scale [L, D] of the states."""

    kernel: jax.Array
    bias: jax.Array
    mean: jax.Array
    scale: jax.Array


def control_labels(types: Sequence[str], labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a random label per word, equal for all occurrences of a type; int32 [n].

    Args:
      types: the n words, from all files together.
      labels: int, training labels of the task; random labels have the same frequencies, as in the paper.
    """
    distinct, number = np.unique(np.asarray(types), return_inverse=True)
    return np.random.default_rng(seed).choice(labels, len(distinct))[number].astype(np.int32)


def probe(
    train: Labels, heldout: Labels, classes: int, seed: int, on_words: Callable[[int], object] = lambda words: None
) -> dict[str, np.ndarray]:
    """Train the probes and score them.

    Returns:
      `accuracy`: float64 [L, K], on held-out words. `bits`: float64 [L, K], online code length for all training labels.
      `uniform_bits`: code length if all classes were equally probable. `compression`: ratio of the two. `majority`:
      float64 [K], accuracy of the most frequent training class.

    Args:
      train: words in random order, or sentences in random order.
      heldout: other words, with the same tasks.
      classes: C.
      seed: seed for batch order.
      on_words: called after each step with the number of words read.
    """
    count, tasks = train.numbers.shape
    mean, variance = moments(train.states)
    features = mean.astype(np.float32), (np.sqrt(variance) + 1e-6).astype(np.float32)
    random = np.random.default_rng(seed)
    sizes = portions(count)
    # Without a probe, each label of the first portion costs log2(C) bits.
    bits = np.full((train.states.shape[1], tasks, len(PENALTIES)), sizes[0] * math.log2(classes))
    for size, following in zip(sizes, [*sizes[1:], None]):
        probes = _fitted(train, size, classes, random, features, on_words)
        if following is not None:
            bits += _scores(probes, train, slice(size, following), classes)[0]
    best = np.argmin(bits, axis=-1)[..., None]
    correct = _scores(probes, heldout, slice(0, len(heldout.numbers)), classes)[1]
    constant = np.array([np.bincount(train.numbers[:, task], minlength=classes).argmax() for task in range(tasks)])
    # The chosen penalty must be sent too: log2(R) bits.
    bits = np.take_along_axis(bits, best, axis=-1)[..., 0] + math.log2(len(PENALTIES))
    uniform_bits = count * math.log2(classes)
    return {
        "accuracy": np.take_along_axis(correct, best, axis=-1)[..., 0] / len(heldout.numbers),
        "bits": bits,
        "uniform_bits": uniform_bits,
        "compression": uniform_bits / bits,
        "majority": np.mean(heldout.numbers == constant, axis=0),
    }


def portions(count: int) -> list[int]:
    """Return the word counts after which a probe is trained, ascending; the last one is `count`."""
    sizes = {math.ceil(fraction * count) for fraction in FRACTIONS}
    return sorted(size for size in sizes if size >= min(count, _SMALLEST_PORTION))


def work(count: int) -> int:
    """Return the number of words that `probe` reads during training, for its progress bar."""
    return sum(_steps(size) for size in portions(count)) * _BATCH


def _steps(count: int) -> int:
    # Early probes have few words: without a minimum of steps they would stay near zero.
    return max(_FEWEST_STEPS, _EPOCHS * math.ceil(count / _BATCH))


def _fitted(
    train: Labels,
    size: int,
    classes: int,
    random: np.random.Generator,
    features: tuple[np.ndarray, np.ndarray],
    on_words: Callable[[int], object],
) -> _Probes:
    """Train probes on the first words of `train`, from zeros; `features` are their mean and scale."""
    _, layers, width = train.states.shape
    outputs = train.numbers.shape[1] * len(PENALTIES) * classes
    zeros = jnp.zeros((layers, width, outputs)), jnp.zeros((layers, outputs))
    probes, state = _Probes(*zeros, *features), OPTIMIZER.init(zeros)
    steps, batches = _steps(size), _order(size, random)
    for step in range(steps):
        # Cosine decay to 0.
        rate = _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        probes, state = _update(probes, state, *_batch(train, next(batches)), rate, classes=classes)
        on_words(_BATCH)
    return probes


def _order(size: int, random: np.random.Generator) -> Iterator[slice]:
    """Yield slices of the first words forever, reordered in each epoch."""
    # Slices instead of single words: a memory-mapped file is fast only for contiguous reads.
    starts = np.arange(0, size, _BATCH)
    while True:
        for start in random.permutation(starts):
            yield slice(start, min(size, start + _BATCH))


def moments(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance per feature, float64 [L, D], of states [n, L, D] that are read in slices."""
    total = squares = 0.0
    for start in range(0, len(states), 16 * _BATCH):
        part = states[start : start + 16 * _BATCH].astype(np.float64)
        total, squares = total + part.sum(axis=0), squares + np.square(part).sum(axis=0)
    mean = total / len(states)
    return mean, np.maximum(squares / len(states) - mean**2, 0)


def _batch(labels: Labels, words: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return states [B, L, D], labels [B, K] and weights [B]; padding has weight 0."""
    states, numbers = labels.states[words], labels.numbers[words]
    # Padded to a fixed size: one shape is one compilation.
    missing = _BATCH - len(states)
    weights = np.repeat(np.float32([1, 0]), [len(states), missing])
    padded = np.pad(states, ((0, missing), (0, 0), (0, 0))).astype(np.float32)
    return padded, np.pad(numbers, ((0, missing), (0, 0))), weights


def _log_probabilities(probes: _Probes, states_BLD: jax.Array, classes: int) -> jax.Array:
    """Return log p in nats, float32 [L, B, K, R, C]."""
    standard_BLD = (states_BLD - probes.mean) / probes.scale
    logits = jnp.einsum("bld,ldo->lbo", standard_BLD, probes.kernel) + probes.bias[:, None]
    return jax.nn.log_softmax(logits.reshape(*logits.shape[:2], -1, len(PENALTIES), classes))


OPTIMIZER = optax.scale_by_adam()


@functools.partial(jax.jit, static_argnames="classes", donate_argnums=(0, 1))
def _update(probes: _Probes, state, states_BLD, numbers_BK, weights_B, rate, classes: int):
    def loss(trained):
        log_p = _log_probabilities(_Probes(*trained, probes.mean, probes.scale), states_BLD, classes)
        chosen = jnp.take_along_axis(log_p, numbers_BK[None, :, :, None, None], axis=-1)[..., 0]
        # The loss is a sum over layers, tasks and penalties. They share no parameters, so each probe gets exactly its
        # own gradient.
        fit = -jnp.einsum("lbkr,b->", chosen, weights_B) / weights_B.sum()
        squares = jnp.square(trained[0]).reshape(*trained[0].shape[:2], -1, len(PENALTIES), classes)
        return fit + jnp.einsum("ldkrc,r->", squares, jnp.asarray(PENALTIES))

    trained = probes.kernel, probes.bias
    updates, state = OPTIMIZER.update(jax.grad(loss)(trained), state)
    trained = jax.tree.map(lambda value, update: value - rate * update, trained, updates)
    return _Probes(*trained, probes.mean, probes.scale), state


def _scores(probes: _Probes, labels: Labels, words: slice, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the code length in bits, and how many predictions are correct; float64 [L, K, R]."""
    bits = correct = np.zeros(())
    for start in range(words.start, words.stop, _BATCH):
        part = _batch(labels, slice(start, min(words.stop, start + _BATCH)))
        sums = jax.device_get(_score(probes, *part, classes=classes))
        bits, correct = bits + sums[0].astype(np.float64), correct + sums[1]
    return bits, correct


@functools.partial(jax.jit, static_argnames="classes")
def _score(probes: _Probes, states_BLD, numbers_BK, weights_B, classes: int):
    log_p = _log_probabilities(probes, states_BLD, classes)
    chosen = jnp.take_along_axis(log_p, numbers_BK[None, :, :, None, None], axis=-1)[..., 0]
    correct = jnp.argmax(log_p, axis=-1) == numbers_BK[None, :, :, None]
    return tuple(jnp.einsum("lbkr,b->lkr", values, weights_B) for values in (-chosen / math.log(2), correct * 1.0))
