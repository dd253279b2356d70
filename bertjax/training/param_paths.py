"""Parameters by their path, as in `encoder/layers/attention/query/kernel`: what sharding and decay select by."""

import re
from collections.abc import Callable
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.errors import UserError


def path_of(key_path: tuple) -> str:
    """Return a leaf's path in a nested dict, as in `encoder/layers/attention/query/kernel`."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def map_with_path(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Map a function of (path, leaf) over a tree."""
    return jax.tree_util.tree_map_with_path(lambda key_path, leaf: function(path_of(key_path), leaf), tree)


def paths_of(tree: Any) -> list[str]:
    """Return the paths of all leaves."""
    return [path_of(key_path) for key_path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def matches(pattern: str) -> Callable[[str], bool]:
    """Return a predicate: whether a path contains a match of a regular expression."""
    compiled = re.compile(pattern)
    return lambda path: compiled.search(path) is not None


def with_heads_of(params: dict, task: str) -> dict:
    """Return the params of a task whose heads are `heads/<task>/...`, as its model has them; all without a task."""
    return params | {"heads": params["heads"].get(task, {})} if task else params


def merge_params(params: dict, others: dict, task: str) -> dict:
    """Return the params of both trees; a param that is in both is taken from the first.

    Args:
      task: name of the task that has `others`, for the error message.

    Raises:
      UserError: a param is in both trees, with different shapes.
    """
    first, second = flatten_dict(params, sep="/"), flatten_dict(others, sep="/")
    for path in first.keys() & second.keys():
        if first[path].shape != second[path].shape:
            raise UserError(
                f"tasks.{task} has {path} with shape {second[path].shape} and another task {first[path].shape}; "
                "heads of the same name are one: let both be alike, or give one of them another name"
            )
    return unflatten_dict(second | first, sep="/")
