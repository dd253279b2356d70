import jax
import pytest

from bertjax.errors import UserError
from bertjax.hardware import platform


@pytest.fixture(autouse=True)
def settings_restored(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    yield
    jax.config.update("jax_platforms", None)


def test_an_idle_accelerator_is_refused_with_the_line_that_installs_its_support(tmp_path, monkeypatch):
    device = tmp_path / "accel0"
    device.touch()
    monkeypatch.setattr(platform, "_ACCELERATORS", {f"{tmp_path}/accel[0-9]*": "tpu"})
    with pytest.raises(UserError) as error:
        platform.configure(None)
    assert str(error.value) == (
        f"this machine shows an accelerator ({device}) but JAX runs on CPU; pip install '.[tpu]', or say --platform=cpu"
    )


def test_a_cpu_that_was_asked_for_is_not_refused(tmp_path, monkeypatch):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(platform, "_ACCELERATORS", {f"{tmp_path}/accel[0-9]*": "tpu"})
    platform.configure("cpu")


def test_a_machine_without_accelerator_is_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "_ACCELERATORS", {f"{tmp_path}/accel[0-9]*": "tpu"})
    platform.configure(None)


def test_a_compiler_without_a_tpu_is_not_asked_for_one(monkeypatch):
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")
    monkeypatch.setattr(platform, "_ACCELERATORS", {})
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    platform.configure(None)
    assert jax.config.jax_platforms == "cpu"


def test_a_device_behind_vfio_is_a_tpu_only_where_google_made_one(tmp_path, monkeypatch):
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
    "given, expected",
    [
        ("", "--xla_cpu_prefer_vector_width=512"),
        ("--xla_dump_to=x", "--xla_dump_to=x --xla_cpu_prefer_vector_width=512"),
        ("--xla_cpu_prefer_vector_width=256", "--xla_cpu_prefer_vector_width=256"),
    ],
)
def test_wide_vectors_are_used_where_the_cpu_has_them_and_the_user_said_nothing(monkeypatch, given, expected):
    monkeypatch.setattr(platform, "_cpu_flags", lambda: "fpu avx2 avx512f")
    monkeypatch.setenv("XLA_FLAGS", given)
    platform.configure("cpu")
    assert platform.os.environ["XLA_FLAGS"] == expected
    monkeypatch.setattr(platform, "_cpu_flags", lambda: "fpu avx2")
    monkeypatch.setenv("XLA_FLAGS", given)
    platform.configure("cpu")
    assert platform.os.environ["XLA_FLAGS"] == given


@pytest.mark.parametrize("backend, before, after", [("tpu", None, "bertjax/compiled"), ("tpu", "/mine", "/mine")])
def test_compiled_programs_are_kept_where_an_accelerator_runs_them(monkeypatch, backend, before, after):
    kept = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    jax.config.update("jax_compilation_cache_dir", before)
    try:
        platform.keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir.endswith(after)
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


def test_on_cpu_nothing_is_kept_unless_asked_for():
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        platform.keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)
