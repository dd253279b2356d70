"""The moving average on one and two simulated devices; prints their difference and shards as JSON."""

import json

import jax
import numpy as np

from bertjax.training.optim.ema import averaged
from tests.training.test_ema import DECAY, setup_of, trained


def share_of(params: dict) -> float:
    """Return the share of a kernel that the first device holds."""
    kernel = params["encoder"]["layers"]["intermediate"]["kernel"]
    return kernel.addressable_shards[0].data.size / kernel.size


def main() -> None:
    layouts = {"one": {"data": 1, "fsdp": 1}, "two": {"data": 1, "fsdp": 2}}
    averages, shares = {}, {}
    for name, mesh in layouts.items():
        devices = jax.devices()[: mesh["fsdp"]]
        states, _ = trained(setup_of(devices=devices, runtime={"mesh": mesh, "strategy": "fsdp"}))
        average = averaged(DECAY, states[-1])["params"]
        averages[name] = jax.device_get(average)
        shares[name] = [share_of(params) for params in (states[-1]["opt_state"][-1].ema, average)]
    differences = jax.tree.map(lambda one, two: float(np.max(np.abs(one - two))), averages["one"], averages["two"])
    print(json.dumps({"difference": max(jax.tree.leaves(differences)), "shares": shares}))


if __name__ == "__main__":
    main()
