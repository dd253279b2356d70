"""Parameter paths such as `encoder/layers/attention/query/kernel`, which sharding, decay and freezing match against."""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models.disentangled_embeddings import ROOT
from bertjax.runtime.errors import UserError


def path_of(key_path: tuple) -> str:
    """Return a leaf's path in a nested dict, such as `encoder/layers/attention/query/kernel`."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def map_with_path(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Map a function over (path, leaf) pairs in a tree."""
    return jax.tree_util.tree_map_with_path(lambda key_path, leaf: function(path_of(key_path), leaf), tree)


def leaves_of(tree: Any) -> dict[str, Any]:
    """Return {path: leaf}, in the order of `jax.tree.leaves`."""
    return {path_of(key_path): leaf for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def matches(pattern: str) -> Callable[[str], bool]:
    """Return a predicate that searches paths for a regular expression."""
    compiled = re.compile(pattern)
    return lambda path: compiled.search(path) is not None


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Return whether any regular expression matches in a path; or in PATH, for its second summand `delta/PATH`."""
    return any(re.search(pattern, name) for pattern in patterns for name in {path, path.removeprefix(f"{ROOT}/")})


# Not relative attention biases, which XLNet decays (`include_in_weight_decay` in zihangdai/xlnet, model_utils.py).
_IS_UNSCALED = matches(r"^scores/|(^|(?<!/relative)/)(\w*bias|scale)$")


def is_decayed(path: str) -> bool:
    """Return whether a param has weight decay: all except biases, layer norms and pruning scores."""
    return not _IS_UNSCALED(path)


def decay_mask(params: dict) -> dict:
    """Return True for each param with weight decay."""
    return map_with_path(lambda path, _: is_decayed(path), params)


def with_heads_of(params: dict, task: str) -> dict:
    """Move a task's heads from `heads/<task>/...` to `heads/...`, where its model has them; no-op without a task."""
    return params | {"heads": params["heads"].get(task, {})} if task else params


def merge_params(params: dict, others: dict, task: str) -> dict:
    """Merge two trees of params. A param in both is taken from the first.

    Args:
      task: owner of `others`, for the error message.

    Raises:
      UserError: a param is in both trees, with different shapes.
    """
    first, second = (cast(dict[str, Any], flatten_dict(tree, sep="/")) for tree in (params, others))
    for path in first.keys() & second.keys():
        if first[path].shape != second[path].shape:
            raise UserError(
                f"tasks.{task} has {path} with shape {second[path].shape} and another task {first[path].shape}; "
                "heads of the same name are one: let both be alike, or give one of them another name"
            )
    return unflatten_dict(second | first, sep="/")
