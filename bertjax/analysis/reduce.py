"""Weighted means over all examples in a material, computed by a jitted function in constant memory."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import numpy as np
from tqdm import tqdm

from bertjax.analysis.material import Material
from bertjax.analysis.subject import Subject, local_mesh
from bertjax.inference.base import bar
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums

# (params, batch) -> {name: (sum, weight)}; the weight has the shape of the sum or broadcasts to it.
Function = Callable[[dict, Arrays], dict[str, Sums]]
# (title, number of tokens) -> a progress bar with `update`.
Progress = Callable[[str, int], AbstractContextManager[tqdm]]


def show(title: str, tokens: int) -> tqdm:
    """Return a progress bar on stderr with a title and the remaining time."""
    progress = bar(tokens)
    progress.set_description(title, refresh=False)
    return progress


def hide(title: str, tokens: int) -> tqdm:
    """Return a progress bar that is never shown."""
    return tqdm(total=tokens, disable=True)


def reduce(
    subject: Subject,
    material: Material,
    function: Function,
    progress: Progress = hide,
    with_objective: bool = False,
    share: float = 1.0,
) -> dict[str, np.ndarray]:
    """Sum a function over all examples and divide each sum by its total weight; float64.

    Batch rows are sharded over all local devices. Sums are added in float64 on the host. A sum with weight 0 becomes
    NaN.

    Args:
      subject: the model.
      material: the texts.
      function: jitted once per shape. Models with one architecture compile it once if their part passes the same
        function object.
      progress: creates the progress bar.
      with_objective: whether batches have the objective's features and its masks.
      share: see `Encoded.batches`.
    """
    totals: dict[str, list[np.ndarray]] = {}
    encoded, jitted = material.encoded(subject), _jitted(function)
    with progress(f"{subject.label}, {material.name}", encoded.tokens) as bar:
        for batch in encoded.batches(subject.encoder, with_objective, share):
            for name, sums in jax.device_get(jitted(subject.params, put(batch))).items():
                before = totals.get(name, (0.0, 0.0))
                # Thousands of batches: float32 sums would lose digits.
                totals[name] = [total + np.asarray(part, np.float64) for total, part in zip(before, sums, strict=True)]
            bar.update(int((batch["examples_BT"] > 0).sum()))
    # 0 / 0 is the documented NaN, not a reason for a warning.
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: np.asarray(total / weight) for name, (total, weight) in totals.items()}


def put(batch: dict[str, np.ndarray]) -> Arrays:
    """Move a batch to the local devices, with rows sharded over them."""
    rows = jax.sharding.NamedSharding(local_mesh(), jax.sharding.PartitionSpec("rows"))
    return jax.device_put(batch, rows)


@functools.lru_cache(maxsize=64)
def _jitted(function: Function) -> Callable:
    # `jax.jit` caches by object, `lru_cache` by equality: equal dataclass functions, such as `fixed.Overlap`, compile
    # once.
    return jax.jit(function)
