"""Which machine this is: settings that must stand before JAX starts, and a guard against running on the wrong half."""

import glob
import os
from pathlib import Path

import jax

from bertjax.errors import UserError

# An accelerator that the machine shows -> the extra that lets JAX use it.
_ACCELERATORS = {"/dev/accel[0-9]*": "tpu", "/dev/vfio/[0-9]*": "tpu", "/dev/nvidia[0-9]*": "cuda"}


def configure(platform: str | None) -> None:
    """Chooses the platform and the compiler's settings; call it before anything computes.

    Raises:
      UserError: JAX would run on CPU although the machine shows an accelerator, and `platform` does not ask for it.
    """
    if "avx512f" in _cpu_flags():
        flag = "--xla_cpu_prefer_vector_width=512"
        if "xla_cpu_prefer_vector_width" not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    if platform:
        jax.config.update("jax_platforms", platform)
    try:
        backend = jax.default_backend()
    except RuntimeError as error:
        raise UserError(f"JAX cannot start on {platform!r}: {str(error).splitlines()[0]}") from error
    if backend == "cpu" and platform != "cpu":
        _refuse_idle_accelerator()


def _refuse_idle_accelerator() -> None:
    for pattern, extra in _ACCELERATORS.items():
        if found := glob.glob(pattern):
            raise UserError(
                f"this machine shows an accelerator ({found[0]}) but JAX runs on CPU; pip install '.[{extra}]', "
                "or say --platform=cpu"
            )


def _cpu_flags() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""
