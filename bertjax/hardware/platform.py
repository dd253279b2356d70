"""Settings that must be made before the process or JAX starts, and a check for idle accelerators."""

import argparse
import glob
import importlib.util
import logging
import os
import sys
from pathlib import Path

import jax
import jaxlib.version

from bertjax.errors import Unavailable, Unexplained, cleaned

# Device file of an accelerator -> the extra that lets JAX use it. WSL2 has no /dev/nvidia0.
_ACCELERATORS = {
    "/dev/accel[0-9]*": "tpu",
    "/dev/vfio/[0-9]*": "tpu",
    "/dev/nvidia[0-9]*": "cuda",
    "/usr/lib/wsl/lib/libcuda.so.1": "cuda",
}
_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_GOOGLE = "0x1ae0"


# With these settings glibc keeps freed memory, and requests it in huge pages. XLA allocates the buffers of a step again
# for every step; a small model then spends a fifth of its step in page faults (benchmarks/train_step.py --ladder).
_MALLOC = {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 40, "top_pad": 1 << 28}
_TUNABLES = "GLIBC_TUNABLES"

# XLA aborts the process at a flag that it does not know, so a flag is set only for jaxlib versions that accepted it in
# the tests: from the first version up to, but not including, the second.
_VECTOR_WIDTH = "--xla_cpu_prefer_vector_width=512"
_VECTOR_WIDTH_JAXLIB = ((0, 10), (0, 13))

# Messages of libtpu and CUDA while another process still holds the device, or while a TPU comes up. "resource busy" is
# what libtpu reports of the device file of a v5e or v6e: open(/dev/vfio/0): Device or resource busy.
_DEVICE_NOT_READY = (
    *("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED"),
    *("in use by another process", "already in use", "Device or resource busy"),
)

log = logging.getLogger(__name__)


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --platform."""
    parser.add_argument(
        "--platform", choices=("cpu", "gpu", "tpu"), help="where to compute (default: the best there is)"
    )


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an error that could not be raised, except those of arrays that are written after a save has failed.

    Orbax closes its event loop at the first array that cannot be written. For each further one, a thread of TensorStore
    finds the loop closed, and its traceback would hide the line about the failed save.
    """
    is_of_closed_loop = unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"
    if not is_of_closed_loop or unraisable.object is not None:
        sys.__unraisablehook__(unraisable)


class _Lines(logging.Formatter):
    """The message, after `warning: ` or `error: ` if it is one."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return cleaned(level + super().format(record))


def configure_logging(is_writer: bool = True) -> None:
    """Print log lines of bertjax on stderr: from the writer all, from other processes warnings only."""
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:  # the import of Orbax makes one, with a format of its own
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_Lines())
    for library in ("absl", "asyncio"):  # Orbax logs tracebacks of errors that it raises as well
        logging.getLogger(library).setLevel(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    logging.getLogger("bertjax").setLevel(logging.INFO if is_writer else logging.WARNING)


def restart_with_huge_pages(platform: str | None) -> None:
    """Restart this process with glibc's settings for large buffers, if it will compute on a Linux CPU.

    glibc reads them when a process starts. Nothing happens if the user has set them, or if an accelerator computes.
    """
    computes_on_cpu = platform == "cpu" or (platform is None and _accelerator() is None)
    if sys.platform == "linux" and computes_on_cpu and _TUNABLES not in os.environ:
        os.environ[_TUNABLES] = ":".join(f"glibc.malloc.{name}={value}" for name, value in _MALLOC.items())
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def configure(platform: str | None) -> None:
    """Set the platform and the compiler's options; call it before anything computes.

    Raises:
      Unexplained: the platform does not start, or JAX would run on CPU although the machine has an accelerator, and
        `platform` is not "cpu".
      Unavailable: another process holds the accelerator, or it is not ready.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    first, too_new = _VECTOR_WIDTH_JAXLIB
    is_accepted = first <= jaxlib.version.__version_info__ < too_new
    if is_accepted and "avx512f" in _cpu_flags() and "xla_cpu_prefer_vector_width" not in flags:
        # By default LLVM vectorizes for 256 bits even on CPUs with AVX-512 (benchmarks/train_step.py measures both).
        os.environ["XLA_FLAGS"] = f"{flags} {_VECTOR_WIDTH}".strip()
    if platform:
        jax.config.update("jax_platforms", platform)
    elif _has_libtpu_without_tpu():
        jax.config.update("jax_platforms", "cpu")
    try:
        backend = jax.default_backend()
    except RuntimeError as error:
        message = f"JAX cannot start on {platform or 'any platform'}: {str(error).splitlines()[0]}"
        if any(sign in str(error) for sign in _DEVICE_NOT_READY):
            raise Unavailable(f"{message}; run the same command again when the device is free") from error
        raise Unexplained(message) from error
    if backend == "cpu" and platform != "cpu" and (idle := _accelerator()):
        device, extra = idle
        raise Unexplained(  # support is not installed, or libtpu failed and JAX fell back to CPU
            f"this machine has an accelerator ({device}), but JAX runs on CPU; pip install '.[{extra}]', or set "
            "--platform=cpu"
        )


def keep_compiled_programs() -> None:
    """Cache programs that are compiled for accelerators, so that a run that resumes does not compile again.

    JAX's own setting (JAX_COMPILATION_CACHE_DIR) has precedence. Without it, programs for CPU are not cached: they are
    for exactly the processor that compiled them, and other machines may share the home directory.
    """
    if jax.default_backend() != "cpu" and not jax.config.jax_compilation_cache_dir:
        folder = Path.home() / ".cache" / "bertjax" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        log.info("compiled programs are kept in %s (JAX_COMPILATION_CACHE_DIR)", folder)


def _has_libtpu_without_tpu() -> bool:
    """True if libtpu is installed without a TPU; JAX would otherwise probe for one, slowly and with warnings."""
    setting = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
    return not setting and importlib.util.find_spec("libtpu") is not None and _accelerator() is None


def _accelerator() -> tuple[str, str] | None:
    """Return the device file of an accelerator and the extra that supports it; None without an accelerator."""
    for pattern, extra in _ACCELERATORS.items():
        # Any device can be passed to a virtual machine through vfio.
        if (devices := glob.glob(pattern)) and ("/vfio/" not in pattern or _has_google_device()):
            return devices[0], extra
    return None


def _has_google_device() -> bool:
    return any(Path(vendor).read_text().strip() == _GOOGLE for vendor in glob.glob(_PCI_VENDORS))


def _cpu_flags() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""
