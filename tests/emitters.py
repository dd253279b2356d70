"""XLA's emitters of fused loops: the suite compiles with the older ones where jaxlib still has them.

The older emitters take half of the compile time, and round fused loops differently in different programs. Tests that
compare two programs to the last bits compile them with AS_USERS_COMPILE. jaxlib 0.11 has the newer emitters only, and
its XLA aborts the process at the flag that chooses. Nothing here may import JAX: `pytest_configure` needs QUICK_FLAGS
before JAX reads them.
"""

import jaxlib.version

_HAS_OLDER_EMITTERS = jaxlib.version.__version_info__ < (0, 11)

QUICK_FLAGS = "--xla_backend_optimization_level=0" + (
    " --xla_cpu_use_fusion_emitters=false" if _HAS_OLDER_EMITTERS else ""
)
AS_USERS_COMPILE: dict[str, bool] = {"xla_cpu_use_fusion_emitters": True} if _HAS_OLDER_EMITTERS else {}
