"""Save a state of which one of four simulated devices holds a wrong copy; prints, as JSON, what each save raises."""

import json
import sys

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.errors import RunFailed
from bertjax.training.config import MeshConfig
from bertjax.training.parallel.sharding import make_mesh
from bertjax.training.run.checkpoint import Checkpoints, Retention

# Array -> how it is sharded on two replicas (data) of two shards (fsdp).
SPECS = {"bias": P(), "kernel": P(None, "fsdp"), "rows": P(("data", "fsdp"))}


def state(wrong: str = "", device: int = 0) -> dict:
    """Return arrays of 8 x 8; one bit of the copy on a device is wrong in the array `wrong`."""
    mesh = make_mesh(MeshConfig(2, 2, 1), jax.devices())
    values = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)

    def put(name: str) -> jax.Array:
        sharding = NamedSharding(mesh, SPECS[name])
        copies = []
        for holder, part in sharding.addressable_devices_indices_map(values.shape).items():
            copy = values[part].copy()
            if name == wrong and holder.id == device:
                copy.view(np.uint32)[3, 1] ^= 1
            copies.append(jax.device_put(copy, holder))
        return jax.make_array_from_single_device_arrays(values.shape, sharding, copies)

    return {name: put(name) for name in SPECS}


def main(folder: str) -> None:
    checkpoints = Checkpoints(epath.Path(folder), Retention(9))
    outcomes = []
    for step, wrong in enumerate([("", 0), ("bias", 0), ("bias", 3), ("kernel", 2), ("", 0)]):
        try:
            checkpoints.save(step, state(*wrong), {})
            checkpoints.settle()
            outcomes.append("saved")
        except RunFailed as error:
            outcomes.append(str(error))
    saved = Checkpoints(epath.Path(folder)).steps()
    restored = Checkpoints(epath.Path(folder)).restore_newest(lambda step: state())
    print(json.dumps({"outcomes": outcomes, "saved": saved, "restored": restored.step}))


if __name__ == "__main__":
    main(sys.argv[1])
