"""Parameters by the path of their name: the one convention for sharding and weight decay."""

import re
from collections.abc import Callable
from typing import Any

import jax


def path_of(key_path: tuple) -> str:
    """`encoder/layers/attention/query/kernel` for a leaf of a nested dict."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def map_with_path(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """`jax.tree.map` whose function also gets each leaf's path."""
    return jax.tree_util.tree_map_with_path(lambda key_path, leaf: function(path_of(key_path), leaf), tree)


def paths_of(tree: Any) -> list[str]:
    """The paths of all leaves."""
    return [path_of(key_path) for key_path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def matches(pattern: str) -> Callable[[str], bool]:
    """A predicate that searches a path for a regular expression."""
    compiled = re.compile(pattern)
    return lambda path: compiled.search(path) is not None
