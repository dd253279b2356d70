"""Choice and setup of the platform: accelerators, CPU flags, and the compilation cache."""

import io
import logging

import jax
import pytest

from bertjax.runtime import platform
from bertjax.runtime.errors import Unavailable, Unexplained, UserError


@pytest.fixture(autouse=True)
def settings_restored(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    yield
    jax.config.update("jax_platforms", None)


def test_an_idle_accelerator_is_an_error_with_the_line_that_installs_its_support(tmp_path, monkeypatch):
    device = tmp_path / "accel0"
    device.touch()
    monkeypatch.setattr(platform, "_ACCELERATORS", {f"{tmp_path}/accel[0-9]*": "tpu"})
    with pytest.raises(UserError) as error:
        platform.configure(None)
    assert str(error.value) == (
        f"this machine has an accelerator ({device}), but JAX runs on CPU; pip install '.[tpu]', or set --platform=cpu"
    )


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Unable to initialize backend 'tpu': UNAVAILABLE: No TPU Platform available.", Unavailable),
        ("Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by another process", Unavailable),
        ("open /dev/vfio/0: Device or resource busy: Couldn't open iommu group", Unavailable),
        ("Unable to initialize backend 'tpu': INVALID_ARGUMENT: TPU topology is unknown", Unexplained),
    ],
)
def test_a_device_that_another_process_holds_is_tried_again(monkeypatch, message, kind):
    def fail():
        raise RuntimeError(f"{message}\n(set JAX_PLATFORMS='' to choose)")

    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(UserError, match=message) as raised:
        platform.configure(None)
    assert type(raised.value) is kind


def test_libtpu_without_a_tpu_is_not_probed(monkeypatch):
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")
    monkeypatch.setattr(platform, "_ACCELERATORS", {})
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    platform.configure(None)
    assert jax.config.jax_platforms == "cpu"


def test_a_vfio_device_is_a_tpu_only_if_its_vendor_is_google(tmp_path, monkeypatch):
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "0").touch()
    (tmp_path / "vendor").write_text("0x8086\n")
    monkeypatch.setattr(platform, "_ACCELERATORS", {f"{tmp_path}/vfio/[0-9]*": "tpu"})
    monkeypatch.setattr(platform, "_PCI_VENDORS", f"{tmp_path}/vendor")
    platform.configure(None)
    (tmp_path / "vendor").write_text("0x1ae0\n")
    with pytest.raises(UserError, match="vfio/0"):
        platform.configure(None)


@pytest.mark.parametrize(
    "flags_before, expected",
    [
        ("", "--xla_cpu_prefer_vector_width=512"),
        ("--xla_dump_to=x", "--xla_dump_to=x --xla_cpu_prefer_vector_width=512"),
        ("--xla_cpu_prefer_vector_width=256", "--xla_cpu_prefer_vector_width=256"),
    ],
)
def test_wide_vectors_are_used_if_the_cpu_has_them_and_the_user_set_nothing(monkeypatch, flags_before, expected):
    monkeypatch.setattr(platform, "_cpu_flags", lambda: "fpu avx2 avx512f")
    monkeypatch.setenv("XLA_FLAGS", flags_before)
    platform.configure("cpu")
    assert platform.os.environ["XLA_FLAGS"] == expected
    monkeypatch.setattr(platform, "_cpu_flags", lambda: "fpu avx2")
    monkeypatch.setenv("XLA_FLAGS", flags_before)
    platform.configure("cpu")
    assert platform.os.environ["XLA_FLAGS"] == flags_before


def test_a_jaxlib_that_was_not_tested_gets_no_flag(monkeypatch):
    """Else every command would abort on the day on which XLA drops the flag."""
    monkeypatch.setattr(platform, "_cpu_flags", lambda: "fpu avx2 avx512f")
    monkeypatch.setattr(platform.jaxlib.version, "__version_info__", (0, 13, 0))
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    platform.configure("cpu")
    assert platform.os.environ["XLA_FLAGS"] == "--xla_dump_to=x"


@pytest.mark.parametrize("backend, before, after", [("tpu", None, "bertjax/compiled"), ("tpu", "/mine", "/mine")])
def test_compiled_programs_are_cached_for_accelerators(monkeypatch, backend, before, after):
    kept = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    jax.config.update("jax_compilation_cache_dir", before)
    try:
        platform.keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir.endswith(after)
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


def test_log_lines_are_like_other_lines(monkeypatch):
    """Also if a library has made a handler before: `warning: ...`, and only the message of what is not one."""
    written = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(written)])
    platform.configure_logging()
    logging.getLogger("bertjax.some.module").info("resumed at step %d", 3)
    logging.getLogger("bertjax.some.module").warning("step 4 was skipped")
    logging.getLogger("absl").error("a traceback")
    assert written.getvalue() == "resumed at step 3\nwarning: step 4 was skipped\n"
