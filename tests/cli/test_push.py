"""Publishing a run, on a stand-in of the Hub; what it serves is opened again."""

import os
import subprocess
import sys

import pytest

from bertjax.cli import push
from bertjax.config.opening import SavedModel
from bertjax.interop import card, huggingface
from bertjax.runtime.errors import UserError
from tests import hub_server

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="huggingface_hub is not installed: pip install '.[hub]'"
)
ABOUT = ("--language=ko", "--license=apache-2.0", '--widget=상고를 [MASK]한다: "예"')


def publish(hub: hub_server.Hub, tmp_path, *arguments: str, token: str = "right") -> subprocess.CompletedProcess:
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "bertjax", "push", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_run_and_its_checkpoints_are_published(undisturbed, tmp_path):
    with hub_server.serve("right") as hub:
        done = publish(hub, tmp_path, str(undisturbed), "--to=hub:me/bert", "--every-kept", *ABOUT)
    assert done.returncode == 0, done.stderr
    steps = sorted(int(folder.name) for folder in (undisturbed / "checkpoints").iterdir() if folder.name.isdecimal())
    assert set(hub.files) == {("me/bert", "main"), *(("me/bert", f"step-{step}") for step in steps)}
    assert hub.private == {"me/bert": True} and len(steps) > 1
    assert done.stdout.count("published http") == len(hub.files)
    for files in hub.files.values():
        assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)
        texts = [content.decode("utf-8", "replace") for content in files.values()]
        assert not any(str(tmp_path.parent) in text or os.path.expanduser("~/") in text for text in texts)
    text = hub.files["me/bert", "main"]["README.md"].decode()
    header = text.split("---")[1]
    assert '\nlanguage: "ko"\nlicense: "apache-2.0"\npipeline_tag: "fill-mask"\n' in header
    assert '- text: "상고를 [MASK]한다: \\"예\\""' in header
    assert "License: apache-2.0." in text and 'from_pretrained("me/bert")' in text and "FOLDER" not in text
    assert "| eval/mlm_loss |" in text and "| baseline/majority_accuracy |" in text and "corpus.txt" in text
    for (_, revision), files in hub.files.items():
        folder = tmp_path / revision
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        model, _ = huggingface.read(folder)
        assert model.encoder.layers == SavedModel(undisturbed).export.encoder.layers


def test_a_wrong_token_is_one_line(undisturbed, tmp_path):
    with hub_server.serve("right") as hub:
        done = publish(hub, tmp_path, str(undisturbed / "export"), "--to=hub:me/bert", token="wrong")
    assert done.returncode == 2 and hub.files == {}
    assert done.stderr.startswith("error: cannot publish hub:me/bert@main: ") and done.stderr.count("\n") == 1
    assert "401" in done.stderr and "hf auth login" in done.stderr


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that `push.run` of this process uses."""
    with hub_server.serve("right") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", "right")
        yield hub


@pytest.mark.parametrize("public", [False, True])
def test_only_public_publishes_to_everybody(undisturbed, hub, public):
    push.run(str(undisturbed / "export"), "hub:me/new", card.About(), public=public)
    assert hub.private == {"me/new": not public}
    hub.private["me/open"], hub.files["me/open", "main"] = False, {}
    if public:
        push.run(str(undisturbed / "export"), "hub:me/open", card.About(), public=True)
        assert hub.files["me/open", "main"]
        return
    with pytest.raises(UserError, match="^hub:me/open is public; add --public to publish there, or make it private in"):
        push.run(str(undisturbed / "export"), "hub:me/open", card.About())
    assert hub.files["me/open", "main"] == {}


def test_a_new_model_replaces_all_files_of_the_old_one(undisturbed, hub):
    """What people wrote stays."""
    own = dict.fromkeys(("LICENSE", ".gitattributes", "notes/onnx/a.txt", "images/model.png", "eval.json"), b"by hand")
    stale = "tokenizer.model vocab.txt merges.txt onnx/model.onnx 1_Pooling/config.json 2_Dense/model.safetensors"
    stale += " modules.json pytorch_model.bin model-00001-of-00002.safetensors model.safetensors.index.json"
    for revision in ("main", "step-100"):
        hub.files["me/bert", revision] = own | dict.fromkeys((*stale.split(), "README.md", "tokenizer.json"), b"old")
    hub.private["me/bert"] = True
    push.run(f"{undisturbed}@100", "hub:me/bert@step-100", card.About())
    push.run(str(undisturbed / "export"), "hub:me/bert", card.About())
    for files in (hub.files["me/bert", "main"], hub.files["me/bert", "step-100"]):
        assert own.items() <= files.items() and b"old" not in files.values()
        written = {"README.md", "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json"}
        assert files.keys() - own.keys() == written | {"tokenizer.model", "tokenizer_config.json"}


@pytest.mark.parametrize("text", ["me/bert", "hub:bert", "hub:me/bert@", "hub:me/bert/more"])
def test_a_target_of_another_form_is_refused(text):
    with pytest.raises(UserError, match="is not hub:OWNER/NAME"):
        push.run("nowhere", text, card.About())


def test_only_workdirs_have_kept_checkpoints(undisturbed):
    with pytest.raises(UserError, match="--every-kept"):
        push.run(str(undisturbed / "export"), "hub:me/bert", card.About(), every_kept=True)
