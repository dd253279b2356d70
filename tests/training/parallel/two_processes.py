"""What two processes tell each other; each prints, as JSON, what it saw. Run by test_processes.py."""

import functools
import json

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime import command_line, errors
from bertjax.training.config import MeshConfig
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import make_mesh
from bertjax.training.run.fingerprints import check_replicas


def outcome(action) -> list:
    """The class, exit code and message of what an action raises; empty if it raises nothing."""
    try:
        action()
    except errors.UserError as error:
        return [type(error).__name__, command_line.code_for(error), str(error)]
    return []


def fail(kind: type[Exception]) -> None:
    if jax.process_index() == 1:
        raise kind("broken")


def state(wrong: int) -> dict:
    """An array that both processes hold; that of process 1 has `wrong` more in one element."""
    sharding = NamedSharding(make_mesh(MeshConfig(2, 1, 1), jax.devices()), P())
    values = np.zeros((4, 4), np.float32)
    values[2, 1] = wrong if jax.process_index() == 1 else 0
    copy = jax.device_put(values, jax.local_devices()[0])
    return {"params": {"kernel": jax.make_array_from_single_device_arrays((4, 4), sharding, [copy])}}


def main() -> None:
    processes.start(30)
    index = jax.process_index()
    seen = {"values": processes.gather(10 * index, "values")}
    for kind in (errors.UserError, errors.RunFailed, errors.Unavailable, errors.Busy, errors.Damaged):
        failing = functools.partial(fail, kind)
        seen[kind.__name__] = outcome(functools.partial(processes.together, failing, purpose="failing"))
    seen["defect"] = "" if index else outcome(lambda: processes.together(lambda: None))
    if index:
        try:
            processes.together(lambda: {}["missing"])
        except KeyError as error:
            seen["defect"] = str(error)
    seen["equal"] = outcome(lambda: check_replicas(state(0), 30))
    seen["wrong"] = outcome(lambda: check_replicas(state(1), 30))
    seen["purposes"] = outcome(lambda: processes.gather(0, f"restore-{20 + 10 * index}"))
    seen["steps"] = outcome(lambda: check_replicas(state(0), 20 + 10 * index))
    seen["after"] = processes.gather(index, "after")
    seen["stored"] = len(global_state.client.key_value_dir_get("bertjax/"))
    print(json.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
