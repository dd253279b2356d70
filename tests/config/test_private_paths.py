"""What leaves a machine: exports and model cards hold base names, and the commands still find the data of a run."""

import json
import os
import stat
from pathlib import Path

import pytest

from bertjax.cli import convert
from bertjax.config import export, private_paths
from bertjax.config.config import from_dict, to_dict
from bertjax.config.opening import SavedModel
from bertjax.data.config import DataConfig

_SECRET = "/home/ada/customer-mails"
_SETTINGS = {
    "init_from": f"{_SECRET}/runs/tiny@3500",
    "data": {
        "heldout": f"gs://acme-{_SECRET}/heldout.txt",
        "sources": {
            "mails": {"corpus": f"gs://acme{_SECRET}/mails-*.jsonl"},
            "wiki": {"corpus": "hf:wikimedia/wikipedia/20231101.en:train"},
            "local": {"corpus": f"hf:{_SECRET}/data:train"},
        },
        "store": f"{_SECRET}/stores",
        "cache_dir": f"{_SECRET}/remote",
        "filters": {"questions": {"kind": "decontamination", "against": [f"{_SECRET}/dev.txt", f"{_SECRET}/test.txt"]}},
        "tokenizer": {"model": f"{_SECRET}/tokenizer/"},
    },
    "tasks": {
        "soft": {
            "objective": {
                "kind": "distilled",
                "objective": {"kind": "mlm", "masking": {"kind": "phrases", "lexicon": f"{_SECRET}/phrases.txt"}},
                "teacher": f"{_SECRET}/bert",
                "losses": {"soft": {"kind": "logits"}},
            }
        },
    },
    "optimizer": {"frozen": [r"^(generator/)?encoder/(?!pooler/)"], "multipliers": [{"path": "encoder/embeddings/"}]},
}
_FINETUNED = {
    "tasks": {
        "mails": {
            "objective": {"kind": "classification"},
            "examples": {
                "kind": "labeled_text",
                "train": f"{_SECRET}/train.csv",
                "heldout": f"{_SECRET}/dev.csv",
                "further_heldout": {"test": f"{_SECRET}/test.csv"},
            },
        }
    }
}


@pytest.mark.parametrize("settings", [_SETTINGS, _FINETUNED])
def test_settings_keep_base_names_only(settings):
    full = to_dict(from_dict(settings))
    public = private_paths.without(full)
    text = json.dumps(public)
    assert not any(word in text for word in ("/ada", "acme", "customer"))
    assert to_dict(from_dict(public)) == public  # it is still a configuration
    # Patterns of parameters are not paths of files.
    assert public["optimizer"] == full["optimizer"] and public["model"] == full["model"]
    assert private_paths.without(public) == public


def test_names_of_data_sets_and_files_are_kept():
    public = private_paths.without(to_dict(from_dict(_SETTINGS)))
    sources = {name: source["corpus"] for name, source in public["data"]["sources"].items()}
    assert sources == {
        "mails": "mails-*.jsonl",
        "wiki": "hf:wikimedia/wikipedia/20231101.en:train",
        "local": "data:train",
    }
    assert public["data"]["tokenizer"]["model"] == "tokenizer" and public["init_from"] == "tiny@3500"
    assert public["data"]["store"] == DataConfig.store
    assert public["tasks"]["soft"]["objective"]["objective"]["masking"]["lexicon"] == "phrases.txt"
    assert private_paths.base_name("embedded:en") == "embedded:en"
    assert private_paths.base_name("tfds:wikipedia/20230601.en") == "tfds:wikipedia/20230601.en"
    assert private_paths.base_name("s3://bucket/a b/c.txt") == "c.txt"


@pytest.mark.parametrize("kind", ["distilled", "replacing", "mylab:Wrapper"])
@pytest.mark.parametrize("examples", [{"kind": "labeled_text", "unlabeled": "more.txt"}, {}, None, 3, ["a"]])
def test_every_wrapper_is_removed_with_its_teacher(kind, examples):
    """Malformed examples are kept: building the configuration reports them."""
    student = {"kind": "mlm", "masking": {"kind": "phrases", "lexicon": "a.txt"}}
    objective = {"kind": kind, "objective": student, "teacher": "t", "own": 1}
    task = {"objective": {"kind": kind, "objective": objective}, "weight": 2.0}
    kept = {"kind": "labeled_text"} if isinstance(examples, dict) and examples else examples
    settings = {"tasks": {"good": task | {"examples": examples}, "bad": 3}}
    expected = {"good": {"objective": student, "weight": 2.0, "examples": kept}, "bad": 3}
    assert private_paths.without_teachers(settings) == {"tasks": expected}
    read = private_paths.read_from_export(settings)["tasks"]["good"]
    assert read["objective"] == {"kind": "mlm", "masking": {"kind": "phrases"}} and read["examples"] == kept
    assert private_paths.without_teachers({"tasks": {"good": task}})["tasks"]["good"].keys() == {"objective", "weight"}


def test_an_export_and_its_card_hold_no_path(undisturbed, tmp_path):
    secret = Path(SavedModel(undisturbed).settings["data"]["corpus"])
    files = [path for path in (undisturbed / "export").rglob("*") if path.is_file()]
    assert {"bertjax.json", "README.md"} <= {path.name for path in files}
    assert [path for path in files if str(secret.parent).encode() in path.read_bytes()] == []
    model = SavedModel(undisturbed).export  # a checkpoint has the paths
    assert model.settings["data"]["corpus"] == str(secret)
    model.settings["data"]["corpus"] = "gs://acme-secret-project/customer-mails/mails.txt"
    export.write(tmp_path / "export", model)
    assert "acme" not in (tmp_path / "export" / "bertjax.json").read_text()
    convert.run(tmp_path / "export", tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "`mails.txt`" in card and "acme" not in card


@pytest.mark.parametrize("umask, expected", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_files_of_an_export_have_the_usual_permissions(undisturbed, tmp_path, umask, expected):
    model = SavedModel(undisturbed / "export").export
    before = os.umask(umask)
    try:
        export.write(tmp_path / "export", model)
        export.write(tmp_path / "export", model)  # also if they are replaced
        convert.run(tmp_path / "export", tmp_path / "hf")
    finally:
        os.umask(before)
    files = [path for folder in ("export", "hf") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {
        path.name: oct(expected) for path in files
    }
