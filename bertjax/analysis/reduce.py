"""Sums of a jitted function over all examples of a material; memory does not grow with their number."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import numpy as np
from tqdm import tqdm

from bertjax.analysis.material import Material
from bertjax.analysis.subject import Subject, local_mesh
from bertjax.inference.progress import bar
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums

# (params, batch) -> {name: (sum, weight)}; the weight has the shape of the sum, or one that broadcasts to it.
Function = Callable[[dict, Arrays], dict[str, Sums]]
# (what is computed, its tokens) -> a bar with `update`.
Progress = Callable[[str, int], AbstractContextManager[tqdm]]


def show(title: str, tokens: int) -> tqdm:
    """Return a progress bar on stderr with a title and the time left."""
    progress = bar(tokens)
    progress.set_description(title, refresh=False)
    return progress


def hide(title: str, tokens: int) -> tqdm:
    """Return a progress bar that nobody sees."""
    return tqdm(total=tokens, disable=True)


def reduce(
    subject: Subject,
    material: Material,
    function: Function,
    progress: Progress = hide,
    with_objective: bool = False,
    share: float = 1.0,
) -> dict[str, np.ndarray]:
    """Return the sums of a function over all examples, each divided by the sum of its weights; float64.

    Rows of a batch are sharded over all local devices. Sums are added in float64 on the host. A sum without weight is
    NaN.

    Args:
      subject: the model.
      material: the texts.
      function: jitted once for each shape. Parts that pass the same function object for several models of one
        architecture compile it once.
      progress: makes the progress bar.
      with_objective: whether batches have the features of the objective, and its masks.
      share: see `Encoded.batches`.
    """
    totals: dict[str, list[np.ndarray]] = {}
    encoded, jitted = material.encoded(subject), _jitted(function)
    with progress(f"{subject.label}, {material.name}", encoded.tokens) as bar:
        for batch in encoded.batches(subject.encoder, with_objective, share):
            for name, sums in jax.device_get(jitted(subject.params, put(batch))).items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = [total + np.asarray(part, np.float64) for total, part in zip(before, sums, strict=True)]
            bar.update(int((batch["examples_BT"] > 0).sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: np.asarray(total / weight) for name, (total, weight) in totals.items()}


def put(batch: dict[str, np.ndarray]) -> Arrays:
    """Return a batch on the local devices, its rows sharded over them."""
    rows = jax.sharding.NamedSharding(local_mesh(), jax.sharding.PartitionSpec("rows"))
    return jax.device_put(batch, rows)


@functools.lru_cache(maxsize=64)
def _jitted(function: Function) -> Callable:
    return jax.jit(function)
