"""LoRA, low-rank adaptation (Hu et al., 2021, arXiv 2106.09685), as a function of the params.

A kernel W in the encoder's layers is frozen and replaced with W + alpha / rank * A B. The factors are separate leaves:
`lora/<kernel path>/a` [L, in, rank] and `.../b` [L, rank, out]. The step adds their product to the kernel before the
model runs, so Flax modules need no LoRA code, and a merged model is an ordinary one.
"""

import dataclasses
import re
import zlib
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting
from bertjax.training.param_paths import matches_any

ROOT = "lora"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """LoRA settings (Hu et al., 2021, arXiv 2106.09685): x W becomes x W + alpha / rank * x A B, with W frozen.

    LoRA freezes the encoder without its pooler, and untied decoders, unless `optimizer.frozen` lists other parameters.

    Attributes:
      rank: columns of A and rows of B; 0 adapts no kernel.
      alpha: numerator of the factor on A B.
      kernels: regular expression to search for in the kernel paths of the encoder's layers. The default, queries and
        values, is the paper's choice (section 7.1).
    """

    rank: int = setting(0, least=0)
    alpha: float = setting(16.0, above=0, needs="rank")
    kernels: str = setting("query|value", is_pattern=True, needs="rank")

    def __post_init__(self):
        check(self, "lora")

    def adapts(self, path: str) -> bool:
        """Return whether a path belongs to an adapted kernel."""
        is_kernel = path.startswith("encoder/layers/") and path.endswith("/kernel")
        return bool(self.rank) and is_kernel and re.search(self.kernels, path) is not None


def add_factors(config: LoraConfig, params: dict, key: jax.Array, frozen: tuple[str, ...]) -> dict:
    """Return params with new factors added. The model is unchanged at first, because B starts at 0.

    A is normal with variance 1 / (3 in), the variance of the authors' uniform initialization (loralib).

    Args:
      config: LoRA settings.
      params: the params of a model.
      key: random key for A; each A also depends on its path.
      frozen: patterns of frozen params; they must cover the adapted kernels.

    Raises:
      UserError: no kernel is adapted, an adapted kernel would also be trained, or its factors would not.
    """
    if not config.rank:
        return params
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    adapted = [path for path in flat if config.adapts(path)]
    if not adapted:
        kernels = [path for path in flat if path.startswith("encoder/layers/") and path.endswith("/kernel")]
        raise UserError(f"lora.kernels={config.kernels!r} matches no kernel; choose among {', '.join(kernels)}")
    if trained := [path for path in adapted if not matches_any(frozen, path)]:
        raise UserError(
            f"optimizer.frozen={list(frozen)} would train {trained[0]}, which lora adapts; add "
            f"'{trained[0]}$' to optimizer.frozen, or leave optimizer.frozen empty"
        )
    if held := [path for path in adapted if matches_any(frozen, f"{ROOT}/{path}/a")]:
        raise UserError(
            f"optimizer.frozen={list(frozen)} would freeze {ROOT}/{held[0]}/a, which lora trains; start its patterns "
            "with ^"
        )
    for path in adapted:
        *layers, inputs, outputs = flat[path].shape
        draw = jax.random.fold_in(key, zlib.crc32(path.encode()))  # independent of which other kernels are adapted
        flat[f"{ROOT}/{path}/a"] = jax.random.normal(draw, (*layers, inputs, config.rank)) * (3 * inputs) ** -0.5
        flat[f"{ROOT}/{path}/b"] = jnp.zeros((*layers, config.rank, outputs))
    return unflatten_dict(flat, sep="/")


def merge(config: LoraConfig, params: dict) -> dict:
    """Merge the factors into the params: add alpha / rank * A B to each adapted kernel, in float32."""
    if not config.rank:
        return params
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    merged = {path: leaf for path, leaf in flat.items() if not is_factor(path)}
    for path in filter(config.adapts, merged):
        a, b = (flat[f"{ROOT}/{path}/{name}"] for name in "ab")
        product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # by default a TPU rounds to bfloat16
        merged[path] = jax.lax.stop_gradient(merged[path]) + config.alpha / config.rank * product
    return unflatten_dict(merged, sep="/")


def is_factor(path: str) -> bool:
    """Return whether a path belongs to a LoRA factor."""
    return path.startswith(f"{ROOT}/")
