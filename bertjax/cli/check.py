"""Find devices with silent data corruption: python -m bertjax check.

All devices on this machine repeat one program with the same input, and the results must be equal bit for bit. Passing
proves nothing: some errors depend on the input, the temperature or the load.
"""

import collections
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.runtime import command_line, platform
from bertjax.runtime.command_line import FAILED, FINISHED
from bertjax.runtime.errors import UserError

# Platform -> matrix width, number of products, words of memory. Accelerators need more work to reach full load.
_SIZES = {"cpu": (256, 8, 1 << 20)}
# 2^28 words of 4 bytes fill 1 GiB of memory.
_SIZES_OF_ACCELERATORS = (4096, 64, 1 << 28)
# Columns of the results.
PARTS = ("matrix products in float32", "matrix products in bfloat16", "memory")


def run(rounds: int) -> np.ndarray:
    """Run the check on all local devices and return bit sums, uint32 [round, device, part]."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("device",))
    width, products, words = _SIZES.get(devices[0].platform, _SIZES_OF_ACCELERATORS)
    work = functools.partial(_work, width, products, words)
    # One program for all devices: programs that are compiled separately may round differently.
    on_all = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=P(), out_specs=P("device"), check_vma=False))
    return np.stack([jax.device_get(on_all(jnp.uint32(0))) for _ in range(rounds)])


def _work(width: int, products: int, words: int, seed: jax.Array) -> jax.Array:
    """Return the bit sums of one device, uint32 [1, part]."""
    first, second, third = jax.random.split(jax.random.key(seed), 3)
    # Scaled by 1 / sqrt(width), products keep their variance; the tanh below bounds them over many rounds.
    matrix = jax.random.normal(first, (width, width)) / width**0.5
    start = jax.random.normal(second, (width, width))

    def multiply(dtype: str) -> jax.Array:
        factor = matrix.astype(dtype)
        # By default, JAX multiplies float32 in one bfloat16 pass on a TPU and in TF32 on a GPU.
        precision = jax.lax.Precision.HIGHEST if dtype == "float32" else None

        def product(_, x: jax.Array) -> jax.Array:
            return jnp.tanh(jnp.matmul(x, factor, precision=precision))

        return _sum_of_bits(jax.lax.fori_loop(0, products, product, start.astype(dtype)))

    # Without the barrier, XLA would fuse the random bits into their sum and never store them in memory.
    stored = jax.lax.optimization_barrier(jax.random.bits(third, (words,)))
    return jnp.stack([multiply("float32"), multiply("bfloat16"), _sum_of_bits(stored)])[None]


def _sum_of_bits(array: jax.Array) -> jax.Array:
    """Sum the elements as unsigned integers, modulo 2**32. Any single flipped bit changes the sum."""
    # Bits and not values: in a sum of floats, rounding can hide a flipped bit.
    unsigned = jnp.uint16 if array.dtype == jnp.bfloat16 else jnp.uint32
    return jnp.sum(jax.lax.bitcast_convert_type(array, unsigned), dtype=jnp.uint32)


def wrong_rounds(results: np.ndarray) -> np.ndarray:
    """Count the rounds in which a device differs from the most frequent result, int [device, part].

    Args:
      results: uint32 [round, device, part].
    """
    parts = np.moveaxis(results, -1, 0)
    # There is no reference to compare with, because correct bits depend on hardware and compiler: the most frequent
    # result counts as correct.
    frequent = [collections.Counter(part.ravel().tolist()).most_common(1)[0][0] for part in parts]
    return (results != np.array(frequent)).sum(axis=0)


def _report(devices: Sequence[jax.Device], results: np.ndarray) -> int:
    wrong, rounds = wrong_rounds(results), len(results)
    for device, counts in zip(devices, wrong):
        problems = [f"{part} differ in {count} of {rounds} rounds" for part, count in zip(PARTS, counts) if count]
        print(f"{device}  {device.device_kind}  {'; '.join(problems) or f'{rounds} of {rounds} rounds are equal'}")
    if not wrong.any():
        return FINISHED
    print("a device of this machine gives wrong results; take the machine out of the run")
    return FAILED


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if a device disagrees with the majority."""
    parser = command_line.ArgumentParser(
        "check",
        description="Repeat one program on all devices of this machine and compare the results bit for bit.",
        epilog="examples:\n"
        "  before a long run:           python -m bertjax check\n"
        "  a chip that is in doubt:     python -m bertjax check --rounds=1000\n",
    )
    parser.add_argument("--rounds", type=int, default=20, help="repetitions on each device (default: %(default)s)")
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    if args.rounds < 2:
        raise UserError(f"--rounds={args.rounds} must be 2 or more")
    platform.configure(args.platform)
    return _report(jax.local_devices(), run(args.rounds))
