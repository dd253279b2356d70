"""Configurations: what settings default to and become, and which of them identify a run."""

import dataclasses
import json

import pytest

from bertjax.cli import train
from bertjax.config import config_file, settings
from bertjax.config.config import CONFIG_UNIONS, Config, to_dict
from bertjax.config.config_file import load
from bertjax.config.typed import override
from bertjax.runtime.errors import UserError


def test_the_identity_leaves_out_how_and_where_a_run_is_executed():
    config = load("configs/tiny.py:smoke")

    def identity(overrides):
        return load("configs/tiny.py:smoke", overrides).identity("f00d")

    for free in ("data.store=/x", "data.corpus=/copy/of/it", "data.heldout=/y", "runtime.micro_tokens=64",
                 "runtime.keep=9", "eval.rows=10"):  # fmt: skip
        assert identity([free]) == config.identity("f00d"), free
    for bound in ("seed=1", "model.width=256", "data.splitter=line", "tasks.bert.objective.masking.rate=0.2",
                  "optimizer.b1=0.8", "stages.0.steps=61"):  # fmt: skip
        assert identity([bound]) != config.identity("f00d"), bound
    assert config.identity("other") != config.identity("f00d")
    assert json.loads(json.dumps(config.identity("f00d"))) == config.identity("f00d")


@pytest.mark.parametrize("union", CONFIG_UNIONS, ids=lambda union: union.setting)
def test_every_setting_of_every_kind_has_documentation(union):
    for kind in union.kinds:
        cls = union.class_of(kind)
        names = {field.name for field in dataclasses.fields(cls) if field.init} - {"kind"}
        docs = settings.docs_of(cls)
        undocumented = names - {name for name, doc in docs.items() if doc and not doc.startswith("see ")}
        assert not undocumented, f"{cls.__module__}:{cls.__name__} has no Attributes for {sorted(undocumented)}"


def test_every_setting_of_a_configuration_is_listed_with_documentation():
    config = config_file.load("tiny", [])
    listed = {setting.path: setting for setting in settings.settings_of(config)}
    assert not [path for path, setting in listed.items() if not setting.doc]

    def leaves(value, path=""):
        if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            value = dict(enumerate(value))
        if not isinstance(value, dict) or not value:
            yield path
            return
        for key, entry in value.items():
            yield from leaves(entry, f"{path}.{key}".removeprefix("."))

    assert set(leaves(to_dict(config))) == listed.keys()
    assert listed["stages.0.batch"].default == Config().stages[0].batch
    assert listed["stages.0.seq_len"].value == config.stages[0].seq_len


def test_a_prefix_ends_at_a_dot():
    with pytest.raises(UserError, match="^no setting starts with 'optim'; --settings without a value lists all"):
        settings.settings_of(Config(), "optim")
    [only] = settings.settings_of(Config(), "seed")
    assert only.path == "seed"


def test_the_flag_prints_settings_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train.main(["--config=tiny:smoke", "--settings=stages.0", "--config.stages.0.steps=70"]) == 0
    printed = capsys.readouterr().out
    assert "stages.0.steps = 70" in printed and "optimizer" not in printed.replace("`optimizer", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "assignment, expected",
    [
        ("seed=3", {"stages": [{"steps": 1}, {"steps": 2}], "seed": 3}),
        ("stages.1.steps=7", {"stages": [{"steps": 1}, {"steps": 7}]}),
        ("stages.0={'steps': 9}", {"stages": [{"steps": 9}, {"steps": 2}]}),
        ("stages=[]", {"stages": []}),
        ("a.b.c=1e-3", {"stages": [{"steps": 1}, {"steps": 2}], "a": {"b": {"c": 1e-3}}}),
        ("a=embedded:ko", {"stages": [{"steps": 1}, {"steps": 2}], "a": "embedded:ko"}),
        ("a=x=y", {"stages": [{"steps": 1}, {"steps": 2}], "a": "x=y"}),
        ("a=", {"stages": [{"steps": 1}, {"steps": 2}], "a": ""}),
        ("a=True", {"stages": [{"steps": 1}, {"steps": 2}], "a": True}),
    ],
)
def test_overrides(assignment, expected):
    mapping = {"stages": [{"steps": 1}, {"steps": 2}]}
    override(mapping, assignment)
    assert mapping == expected
