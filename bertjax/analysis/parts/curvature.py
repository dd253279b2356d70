"""Sensitivity of each layer to rounding, measured by the loss curvature, and the resulting bits per layer.

Shen et al. (2020, Q-BERT, arXiv 1909.05840, section 3.1) define a layer's sensitivity as |mean| + deviation of its
largest Hessian eigenvalue over data subsets. They choose bits by hand. Here the more sensitive half of the layers gets
4 bits, and the others get 2.

The eigenvalue follows from power iteration. The Hessian is never formed: its product with a vector v is the gradient's
derivative in direction v (Pearlmutter, 1994). The gradient is linearized once per batch and reused by all products.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.analysis import drawing
from bertjax.analysis.ablation import packed_rows, tokens_in
from bertjax.analysis.material import SEED, Encoded, Material
from bertjax.analysis.part import Case, Figure, Part, highest
from bertjax.analysis.reduce import Progress, put
from bertjax.analysis.subject import Subject
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.training.loss import normalized, total_loss

# The iteration ends if the eigenvalue changes by less than this fraction, or after this many products.
TOLERANCE, MOST_PRODUCTS = 1e-3, 100


@functools.lru_cache(maxsize=8)
def function_of(objective: Objective, encoder: EncoderConfig) -> Callable[..., jax.Array]:
    """Return jitted `top_eigenvalue`, shared by all models of one architecture and task."""
    return jax.jit(functools.partial(top_eigenvalue, objective, objective.model(encoder)))


def top_eigenvalue(
    objective: Objective,
    model: Model,
    params: dict,
    frozen: dict | None,
    batch: Arrays,
    layer: jax.Array,
    train_step: jax.Array,
) -> jax.Array:
    """Device: return the eigenvalue of largest magnitude, float32 [].

    Args:
      objective: defines the loss, a mean over the batch without dropout.
      model: its Linen module.
      params: model parameters; layers must not share them.
      frozen: result of `Objective.frozen_params`.
      batch: the core batch and the features.
      layer: int, counted from 0.
      train_step: training step of the loss weights.
    """
    flat = flatten_dict(params, sep="/")
    kernels = {path: leaf for path, leaf in flat.items() if is_kernel_of_layers(path)}

    def loss(kernels: dict) -> jax.Array:
        values = unflatten_dict(flat | kernels, sep="/")
        sums, _ = objective.terms(model, values, frozen, batch, jax.random.key(0), False)
        return total_loss(objective, normalized(sums, objective.weights(batch)), train_step)

    # Forward over reverse: `product(v)` is the Hessian-vector product, without another forward pass.
    _, product = jax.linearize(jax.grad(loss), kernels)

    # Parameters are stacked on L. Restricting vectors to one row restricts the Hessian to that layer's block.
    def of_layer(tree: dict) -> dict:
        return {path: jnp.zeros_like(leaf).at[layer].set(leaf[layer]) for path, leaf in tree.items()}

    def normal(tree: dict) -> dict:
        norm = jnp.sqrt(_dot(tree, tree))
        return jax.tree.map(lambda leaf: leaf / jnp.where(norm > 0, norm, 1.0), tree)

    def step(state: tuple) -> tuple:
        vector, value, _, count = state
        image = of_layer(product(vector))
        # The Rayleigh quotient v^T H v of a unit vector keeps the sign, which the norm of H v would lose.
        return normal(image), _dot(vector, image), value, count + 1

    def goes_on(state: tuple) -> jax.Array:
        _, value, before, count = state
        # At least two products: the first value has no predecessor.
        return (count < 2) | ((jnp.abs(value - before) > TOLERANCE * jnp.abs(value)) & (count < MOST_PRODUCTS))

    keys = jax.random.split(jax.random.key(0), len(kernels))
    start = {path: jax.random.normal(key, leaf.shape) for key, (path, leaf) in zip(keys, kernels.items(), strict=True)}
    first = normal(of_layer(start)), jnp.float32(0), jnp.float32(0), 0
    return jax.lax.while_loop(goes_on, step, first)[1]


def is_kernel_of_layers(path: str) -> bool:
    """Return whether a parameter path is a kernel of the encoder's layers, [L, ...]."""
    return path.startswith("encoder/layers/") and path.endswith("/kernel")


def _dot(a: dict, b: dict) -> jax.Array:
    return sum(jnp.vdot(a[path], b[path]) for path in a)


# Number of data subsets, and the limit on positions in each. An eigenvalue takes 10 to 50 backward passes over a
# subset.
SUBSETS, POSITIONS = 5, 1 << 11
MORE_BITS, FEWER_BITS = 4, 2


class Curvature(Part):
    """Top Hessian eigenvalue of each layer's kernels, and bits per layer.

    Arrays: `<model>/<material>/eigenvalues` [L, S] for S data subsets.
    """

    name = "curvature"
    title = "Sensitivity of layers to rounding"
    constants = {"more": MORE_BITS, "fewer": FEWER_BITS}
    other_axes = ("eigenvalues",)
    named_only = True
    needs_objective = True

    def missing(self, subject: Subject, materials: Sequence[Material]) -> str:
        if subject.encoder.sharing != "none":
            return "shares parameters between its layers, so that a layer has no bits of its own"
        return ""

    def measure(self, subject: Subject, material: Material, progress: Progress) -> tuple[dict, dict[str, np.ndarray]]:
        values_LS, examples = _eigenvalues(subject, material, progress)
        # A layer may have flat curvature on average and steep curvature on some data, so the deviation counts too.
        sensitivity_L = np.abs(values_LS.mean(axis=1)) + values_LS.std(axis=1)
        bits = bits_of(sensitivity_L)
        numbers = {"examples": examples, "sensitivity": sensitivity_L.tolist(), "layer_bits": bits}
        return numbers, {"eigenvalues": values_LS}

    def figures(self, cases: Sequence[Case]) -> Iterator[Figure]:
        values = {case.title: case.arrays["eigenvalues"] for case in cases}
        lines = {title: (range(1, len(values_LS) + 1), values_LS.mean(axis=1)) for title, values_LS in values.items()}
        bands = {title: (values_LS.min(axis=1), values_LS.max(axis=1)) for title, values_LS in values.items()}
        chart = drawing.curves(lines, "layer", "largest eigenvalue", bands)
        largest = highest({case.title: case.numbers["sensitivity"] for case in cases}, ".3g")
        yield self.figure("eigenvalues", chart, largest=largest)

    def sentence(self, case: Case) -> str:
        bits = ",".join(map(str, case.numbers["layer_bits"]))
        return f"--config.quantization.bits=8 --config.quantization.layer_bits=[{bits}]"


def bits_of(sensitivity_L: np.ndarray) -> list[int]:
    """Return the bits per layer: more for the more sensitive half, which is the larger half if the number is odd."""
    more = np.argsort(-sensitivity_L, kind="stable")[: -(-len(sensitivity_L) // 2)]
    return [MORE_BITS if layer in more else FEWER_BITS for layer in range(len(sensitivity_L))]


def _eigenvalues(subject: Subject, material: Material, progress: Progress) -> tuple[np.ndarray, int]:
    """Return eigenvalues, float64 [L, S], and the number of examples used."""
    encoded = material.encoded(subject)
    batches = list(subsets(encoded))
    examples = sum(int(np.count_nonzero(batch["example_ids_BN"] >= 0)) for batch in batches)
    frozen = encoded.objective.frozen_params(subject.encoder)
    of_batch = functools.partial(function_of(encoded.objective, subject.encoder), subject.params, frozen)
    values_LS = np.zeros((subject.encoder.layers, len(batches)))
    title = f"{subject.label}, curvature on {material.name}"
    with progress(title, subject.encoder.layers * sum(map(tokens_in, batches))) as bar:
        for number, batch in enumerate(batches):
            # The layer is an argument, not a constant: all layers share one compiled program.
            arrays = put(batch)
            for layer in range(subject.encoder.layers):
                values_LS[layer, number] = jax.device_get(of_batch(arrays, layer, subject.steps))
                bar.update(tokens_in(batch))
    return values_LS, examples


def subsets(encoded: Encoded) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of one shape with disjoint random examples: `SUBSETS`, or fewer if there are fewer rows."""
    rows_RN, seq_len = packed_rows(encoded)
    rows_RN = np.random.default_rng(SEED).permutation(rows_RN)  # packing puts long examples first
    devices = jax.local_device_count()
    count = min(SUBSETS, len(rows_RN))
    rows = max(1, min(len(rows_RN) // count, POSITIONS // seq_len))
    for number in range(count):
        rows_BN = np.full((-(-rows // devices) * devices, rows_RN.shape[1]), -1, np.int64)
        rows_BN[:rows] = rows_RN[number * rows : (number + 1) * rows]
        yield encoded.batch(rows_BN, seq_len, with_objective=True)
