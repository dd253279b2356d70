"""Platform settings that must precede the start of the process or of JAX, and a check for idle accelerators."""

import contextlib
import glob
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from bertjax.runtime.errors import Unavailable, Unexplained, cleaned

# Accelerator device file -> pip extra that lets JAX use it. WSL2 has no /dev/nvidia0.
_ACCELERATORS = {
    "/dev/accel[0-9]*": "tpu",
    "/dev/vfio/[0-9]*": "tpu",
    "/dev/nvidia[0-9]*": "cuda",
    "/usr/lib/wsl/lib/libcuda.so.1": "cuda",
}
_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_GOOGLE = "0x1ae0"


# With these settings glibc keeps freed memory and uses huge pages. XLA allocates its buffers again in each step,
# so by default a small model spends a fifth of the step in page faults (benchmarks/train_step.py --ladder).
_MALLOC = {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 40, "top_pad": 1 << 28}
_TUNABLES = "GLIBC_TUNABLES"

# XLA aborts the process on an unknown flag, so set it only for jaxlib versions that accepted it in the tests: from the
# first version up to, but not including, the second.
_VECTOR_WIDTH = "--xla_cpu_prefer_vector_width=512"
_VECTOR_WIDTH_JAXLIB = ((0, 10), (0, 13))

# Messages from libtpu and CUDA while another process still holds the device, or while a TPU starts up. On v5e and v6e,
# libtpu reports: open(/dev/vfio/0): Device or resource busy.
_DEVICE_NOT_READY = (
    *("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED"),
    *("in use by another process", "already in use", "Device or resource busy"),
)

log = logging.getLogger(__name__)


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print unraisable errors, except the ones that follow from a failed save.

    Orbax closes its event loop at the first array that cannot be written. For each further array, a TensorStore thread
    finds the loop closed. These tracebacks would bury the line about the failed save.
    """
    is_of_closed_loop = unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"
    if not is_of_closed_loop or unraisable.object is not None:
        sys.__unraisablehook__(unraisable)


class _Lines(logging.Formatter):
    """Formats records as plain messages, with `warning: ` or `error: ` in front if they are one."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return cleaned(level + super().format(record))


def configure_logging(is_writer: bool = True) -> None:
    """Log to stderr: everything in the writer process, only warnings in other processes."""
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:  # importing Orbax adds a handler with its own format
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_Lines())
    for library in ("absl", "asyncio"):  # Orbax logs tracebacks for errors that it also raises
        logging.getLogger(library).setLevel(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    logging.getLogger("bertjax").setLevel(logging.INFO if is_writer else logging.WARNING)


def restart_with_huge_pages(platform: str | None) -> None:
    """Re-execute this process with glibc settings for large buffers, if it will compute on a Linux CPU.

    glibc reads its tunables only at process start. Does nothing if the user has set them, or on an accelerator.
    """
    computes_on_cpu = platform == "cpu" or (platform is None and _accelerator() is None)
    if sys.platform == "linux" and computes_on_cpu and _TUNABLES not in os.environ:
        os.environ[_TUNABLES] = ":".join(f"glibc.malloc.{name}={value}" for name, value in _MALLOC.items())
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def configure(platform: str | None) -> None:
    """Set the log, the platform and compiler flags; call it before the first computation.

    Raises:
      Unexplained: the platform does not start, or JAX would run on CPU although the machine has an accelerator and
        `platform` is not "cpu".
      Unavailable: another process holds the accelerator, or it is not ready.
    """
    import jax  # not above: a process that restarts needs none of it
    import jaxlib.version

    configure_logging()
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
        raise Unexplained(  # support is not installed, or libtpu failed and JAX silently fell back to CPU
            f"this machine has an accelerator ({device}), but JAX runs on CPU; pip install '.[{extra}]', or set "
            "--platform=cpu"
        )


def keep_compiled_programs() -> None:
    """Enable JAX's compilation cache on accelerators, so that a resumed run does not compile again.

    JAX's own setting (JAX_COMPILATION_CACHE_DIR) has precedence. Without it, CPU programs are not cached: they only run
    on the processor model that compiled them, and machines of other models may share the home directory.
    """
    import jax

    if jax.default_backend() != "cpu" and not cast(Any, jax.config).jax_compilation_cache_dir:
        folder = Path.home() / ".cache" / "bertjax" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        log.info("compiled programs are kept in %s (JAX_COMPILATION_CACHE_DIR)", folder)


@contextlib.contextmanager
def sharing_compiled_programs() -> Iterator[None]:
    """Within this context, runs of this process compile equal programs once, also on a CPU.

    Without a compilation cache, each run would compile its own. A folder that ends with the context is safe on a CPU:
    nothing of it reaches a machine with another processor.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if cast(Any, jax.config).jax_compilation_cache_dir:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()  # JAX looks for the setting once, at the first compilation of the process
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()


def _has_libtpu_without_tpu() -> bool:
    """Whether libtpu is installed on a machine without a TPU. JAX would probe for one, slowly and with warnings."""
    setting = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
    return not setting and importlib.util.find_spec("libtpu") is not None and _accelerator() is None


def _accelerator() -> tuple[str, str] | None:
    """Return an accelerator's device file and the pip extra that supports it, or None."""
    for pattern, extra in _ACCELERATORS.items():
        # vfio passes any PCI device to a virtual machine, so check that Google is the vendor of one.
        if (devices := glob.glob(pattern)) and ("/vfio/" not in pattern or _has_google_device()):
            return devices[0], extra
    return None


def _has_google_device() -> bool:
    return any(Path(vendor).read_text().strip() == _GOOGLE for vendor in glob.glob(_PCI_VENDORS))


def _cpu_flags() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""
