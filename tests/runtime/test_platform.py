"""Choice and setup of the platform: accelerators, CPU flags, and the compilation cache."""

import jax
import pytest

from bertjax.runtime import platform
from bertjax.runtime.errors import UserError


@pytest.fixture(autouse=True)
def settings_restored(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    yield
    jax.config.update("jax_platforms", None)


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
