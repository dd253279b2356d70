"""The moving average on one and two simulated devices; prints their difference and shards as JSON."""

import json

import jax
import numpy as np

from bertjax.training.optim.ema import averaged
from tests.training.test_ema import DECAY, program_of, trained


def main() -> None:
    layouts = {"one": {"data": 1, "fsdp": 1}, "two": {"data": 1, "fsdp": 2}}
    averages, shares = {}, {}
    for name, mesh in layouts.items():
        devices = jax.devices()[: mesh["fsdp"]]
        program = program_of(devices=devices, runtime={"mesh": mesh, "strategy": "fsdp"})
        states, _ = trained(program)
        averages[name] = jax.device_get(averaged(DECAY, states[-1])["params"])
        kernel = states[-1]["opt_state"][-1].ema["encoder"]["layers"]["intermediate"]["kernel"]
        shares[name] = kernel.addressable_shards[0].data.size / kernel.size
    differences = jax.tree.map(lambda one, two: float(np.max(np.abs(one - two))), averages["one"], averages["two"])
    print(json.dumps({"difference": max(jax.tree.leaves(differences)), "shares": shares}))


if __name__ == "__main__":
    main()
