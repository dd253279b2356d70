"""Optimizers from outside of bertjax, `optimizer.kind=module:function`, such as those of `optax.contrib`.

An optimizer decides by a parameter's shape what to do with it: Muon, for example, orthogonalizes matrices and leaves
the rest to Adam. In bertjax, the layers of an encoder are stacked into one array, so that a bias has the shape of a
matrix. An optimizer from outside therefore sees each layer's parameters as arrays of their own, with the layer's number
in their path: `encoder/layers/3/attention/query/kernel`. Its state is stored stacked again, with the paths of the
parameters, and is sharded and grown like them.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import unflatten_dict

from bertjax.config.registry import module_of, user_errors
from bertjax.runtime.errors import UserError, reason
from bertjax.training.optim.by_path import IS_STACKED
from bertjax.training.param_paths import leaves_of, map_with_path

_LAYER = re.compile(r"(?<=encoder/layers/)(\d+)/")


def outside_optimizer(kind: str, arguments: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return the transformation from gradients to updates of an optimizer from outside, without a learning rate.

    Args:
      kind: `module:function`. Like those of optax, the function has an argument `learning_rate` and returns a
        `GradientTransformation` whose updates are added to the params. It gets a rate of 1, since the training step
        applies the rate, and a `weight_decay` of 0 if it has one, since the chain of `make_optimizer` applies it.
      arguments: further arguments by name.

    Raises:
      UserError: the function is not found, has no learning rate, refuses the arguments, or returns something else.
    """
    choice, function = f"optimizer.kind={kind!r}", function_of(kind)
    try:
        takes = inspect.signature(function).parameters
        if "learning_rate" not in takes:
            raise UserError(
                f"{choice} has no argument learning_rate; give it one, and return updates that are added to the "
                "params, as optax.sgd(learning_rate) does"
            )
        no_decay = {"weight_decay": 0.0} if "weight_decay" in takes else {}
        optimizer = function(learning_rate=1.0, **no_decay, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"{choice} with optimizer.arguments={dict(arguments)} fails: {reason(error)}") from error
    if not isinstance(optimizer, optax.GradientTransformation):
        raise UserError(f"{choice} returns a {type(optimizer).__name__}; return an optax.GradientTransformation")
    # The training step subtracts updates.
    return by_layer(_explained(choice, optax.chain(optimizer, optax.scale(-1.0))))


def _explained(choice: str, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Turn what a user's code raises, or returns in another structure, into one line."""
    remedy = "init(params) returns a state, and update(updates, state, params) returns updates and a state"

    def init(params: Any) -> Any:
        with user_errors(choice, remedy, is_theirs=True):
            return optimizer.init(params)

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        with user_errors(choice, remedy, is_theirs=True):
            new_updates, new_state = optimizer.update(updates, state, params)
            _check_alike("the updates", updates, new_updates)
            _check_alike("the state", state, new_state)
            return new_updates, new_state

    return optax.GradientTransformation(init, update)


def _check_alike(what: str, before: Any, after: Any) -> None:
    old, new = ({path: jnp.shape(leaf) for path, leaf in leaves_of(tree).items()} for tree in (before, after))
    if differing := [path for path in {**old, **new} if old.get(path) != new.get(path)]:
        path = differing[0]
        raise ValueError(f"{what} had {path} with shape {old.get(path)}, and update returns {new.get(path)}")


def function_of(kind: str) -> Callable[..., Any]:
    """Import the function that `optimizer.kind=module:function` names.

    Raises:
      UserError: it cannot be imported.
    """
    choice, (module, _, name) = f"optimizer.kind={kind!r}", kind.partition(":")
    function = getattr(module_of(choice, module, trust_code=True), name, None)
    if not callable(function):
        raise UserError(f"{choice} cannot be used: {module} has no function {name!r}; correct the name")
    return function


def by_layer(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply an optimizer to a tree in which every layer of a stack has leaves of its own."""

    def init(params: dict) -> dict:
        return unflatten_dict(_stacked(optimizer.init(_by_layer(params))), sep="/")

    def update(gradient: dict, state: dict, params: dict) -> tuple[dict, dict]:
        params, stored = _by_layer(params), leaves_of(state)
        # Only leaves are stored; the structure comes from an abstract initialization, which computes nothing.
        structure = jax.eval_shape(optimizer.init, params)
        state = map_with_path(lambda path, _: _row_of(stored, path), structure)
        updates, state = optimizer.update(_by_layer(gradient), state, params)
        stacked = _stacked(updates)
        return map_with_path(lambda path, _: stacked[path], gradient), unflatten_dict(_stacked(state), sep="/")

    return optax.GradientTransformation(init, update)


def _by_layer(params: dict) -> dict:
    """Return params with `layers/0/...`, `layers/1/...` in place of stacked leaves `layers/...`."""
    flat = {}
    for path, leaf in leaves_of(params).items():
        before, layers, after = path.partition("encoder/layers/") if IS_STACKED(path) else ("", "", path)
        rows = {f"{before}{layers}{row}/{after}": leaf[row] for row in range(len(leaf))} if layers else {path: leaf}
        flat |= rows
    return unflatten_dict(flat, sep="/")


def _stacked(tree: Any) -> dict[str, jax.Array]:
    """Return {path: leaf} of a tree by layer, such as an optimizer state, with the leaves of all layers stacked."""
    rows: dict[str, dict[str, jax.Array]] = defaultdict(dict)
    for path, leaf in leaves_of(tree).items():
        number = _LAYER.search(path)
        rows[_LAYER.sub("", path)][number[1] if number else ""] = leaf
    return {
        path: leaves[""] if "" in leaves else jnp.stack([leaves[str(row)] for row in range(len(leaves))])
        for path, leaves in rows.items()
    }


def _row_of(stored: Mapping[str, jax.Array], path: str) -> jax.Array:
    """Return a leaf by layer from stacked ones."""
    number = _LAYER.search(path)
    return stored[_LAYER.sub("", path)][int(number[1])] if number else stored[path]
