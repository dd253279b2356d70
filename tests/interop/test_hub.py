"""Models of the Hugging Face Hub by name and revision, from a stand-in of the Hub and from the cache without one."""

import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import convert
from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.interop import hub
from bertjax.runtime.errors import UserError
from tests import hub_server, labeled_files, runs

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="huggingface_hub is not installed: pip install '.[hub]'"
)
COMMIT = hub_server.commit_of("v1")


@pytest.fixture
def cached(undisturbed, tmp_path, monkeypatch):
    """A cache of downloads that has me/tiny at the tag v1, as `huggingface_hub` writes it, and no network."""
    repository = tmp_path / "hub" / "models--me--tiny"
    shutil.copytree(undisturbed / "export" / "hf", repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_cached_model_is_converted_without_a_network(cached, undisturbed, tmp_path):
    convert.run("hf:me/tiny@v1", tmp_path / "model")
    ours = export.read(undisturbed / "export")
    jax.tree.map(np.testing.assert_array_equal, export.read(tmp_path / "model").params, ours.params)
    saved = SavedModel(f"hf:me/tiny@{COMMIT}")
    assert saved.is_export and saved.model == SavedModel(tmp_path / "model").model
    assert saved.folder == tmp_path / ".cache" / "bertjax" / "models" / f"me--tiny@{COMMIT}.v{export.FORMAT_VERSION}"
    written = (saved.folder / export.MANIFEST).stat().st_mtime_ns
    assert bertjax.load("hf:me/tiny@v1").module.config.layers == ours.encoder.layers
    assert (saved.folder / export.MANIFEST).stat().st_mtime_ns == written, "converted once"


def test_a_version_with_another_format_of_exports_converts_again(cached, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(export, "FORMAT_VERSION", export.FORMAT_VERSION + 1)
        hub.converted("hf:me/tiny@v1")
    assert SavedModel("hf:me/tiny@v1").export.encoder, "not refused as a folder of a later version"


@pytest.mark.slow
def test_a_run_starts_from_it_and_records_the_name(cached, undisturbed, tmp_path):
    train, heldout = labeled_files.write(tmp_path, 24, 8)
    files = [
        f"--config.tasks.classify.examples.{name}={path}" for name, path in (("train", train), ("heldout", heldout))
    ]
    flags = ["--config=finetune/classify:smoke", "--config.tasks.classify.examples.text=sentence", *files]
    flags += ["--config.tasks.classify.examples.label=label", "--config.stages.0.steps=2"]
    starts = {"hub": "hf:me/tiny@v1", "folder": undisturbed / "export"}
    for name, start in starts.items():
        assert runs.call(*flags, f"--config.init_from={start}", f"--workdir={tmp_path / name}") == 0
    assert runs.weights(tmp_path / "hub") == runs.weights(tmp_path / "folder")
    assert SavedModel(tmp_path / "hub" / "export").settings["init_from"] == "hf:me/tiny@v1", "no path of this machine"


@pytest.mark.parametrize(
    "name, complaint",
    [
        (
            "hf:me/tiny@v2",
            "not in the cache, and HF_HUB_OFFLINE is set; .* hf download me/tiny --revision v2 --local-dir DIR,",
        ),
        ("hf:me/other", "not in the cache, and HF_HUB_OFFLINE is set; .* hf download me/other --local-dir DIR,"),
        ("hf:me//tiny", "^hf:me//tiny is not hf:OWNER/NAME or hf:OWNER/NAME@REVISION; correct it$"),
        ("hf:", "^hf: is not hf:OWNER/NAME"),
        ("hf:me/tiny@", "^hf:me/tiny@ is not hf:OWNER/NAME"),
    ],
)
def test_what_cannot_be_had_is_one_line(cached, tmp_path, name, complaint):
    for attempt in (lambda: convert.run(name, tmp_path / "model"), lambda: SavedModel(name)):
        with pytest.raises(UserError, match=complaint) as error:
            attempt()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="^hf:me/tiny needs huggingface_hub; pip install '.\\[hub\\]'"):
        hub.downloaded("hf:me/tiny")


@pytest.mark.slow
def test_a_revision_is_downloaded_and_missing_ones_are_named(undisturbed, tmp_path):
    folder = undisturbed / "export" / "hf"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    unwanted = {"tf_model.h5": b"-", "onnx/model.onnx": b"-", "onnx/config.json": b"-", "pytorch_model.bin": b"-"}

    def call(name: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"HF_ENDPOINT": there.address, "HF_HOME": str(tmp_path / "hub")}
        command = [sys.executable, "-m", "bertjax", "convert", f"--from={name}", f"--to={tmp_path / 'model'}"]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    with hub_server.serve("right") as there:
        there.files["me/tiny", "v1"] = files | unwanted
        errors = {name: call(name) for name in ("hf:me/tiny@v2", "hf:me/none@v1")}
        done = call("hf:me/tiny@v1")
    for (name, failed), why in zip(errors.items(), ("the model has no such revision", "no public model of this name")):
        assert failed.returncode == 2 and failed.stderr.startswith(f"error: {name} cannot be downloaded: ")
        assert failed.stderr.count("\n") == 1 and why in failed.stderr and "hf download me/" in failed.stderr
    assert done.returncode == 0, done.stderr
    ours = export.read(undisturbed / "export")
    jax.tree.map(np.testing.assert_array_equal, export.read(tmp_path / "model").params, ours.params)
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.name in ("tf_model.h5", "model.onnx")]
    assert not list((tmp_path / "hub").rglob("*.bin")), "the weights are in safetensors"
