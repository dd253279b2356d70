"""Small functions, compiled for TPUs that are not there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.forecast import hlo, topologies
from bertjax.forecast.hlo import Module


@functools.cache
def mesh(name: str, axes: tuple[str, ...] = ("data",), shape: tuple[int, ...] = (-1,)) -> Mesh:
    return Mesh(np.array(topologies.parse(name).devices()).reshape(shape), axes)


def compiled(function, *arrays: tuple[tuple[int, ...], str, PartitionSpec], on: Mesh) -> jax.stages.Compiled:
    """A function of global arrays (shape, dtype, spec)."""
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(on, spec)) for shape, dtype, spec in arrays
    ]
    return jax.jit(function).lower(*arguments).compile()


def module(function, *arrays, on: Mesh) -> Module:
    return hlo.parse(compiled(function, *arrays, on=on).as_text())
