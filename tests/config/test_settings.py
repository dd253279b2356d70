"""The list of settings: complete, documented, and what the flag prints."""

import dataclasses

import pytest

from bertjax.cli import train
from bertjax.config import config_file, settings
from bertjax.config.config import CONFIG_UNIONS, Config, from_dict, to_dict
from bertjax.runtime.errors import UserError


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
    assert listed["stages.0.seq_len"].value == config.stages[0].seq_len


def test_values_and_defaults():
    config = from_dict({"optimizer": {"learning_rate": 0.25, "schedule": {"kind": "wsd"}}})
    listed = {setting.path: setting for setting in settings.settings_of(config, "optimizer")}
    assert all(path.startswith("optimizer.") for path in listed)
    assert (listed["optimizer.learning_rate"].value, listed["optimizer.learning_rate"].default) == (0.25, 1e-4)
    assert (listed["optimizer.schedule.kind"].value, listed["optimizer.schedule.kind"].default) == ("wsd", "linear")
    assert all(setting.value == setting.default for setting in settings.settings_of(Config(), "runtime"))


def test_defaults_are_those_of_the_objective_that_holds_a_part():
    """ELECTRA masks every chosen token unless something else is set."""
    config = from_dict({"tasks": {"a": {"objective": {"kind": "electra"}, "examples": {"kind": "full_sentences"}}}})
    listed = {setting.path: setting for setting in settings.settings_of(config, "tasks.a.objective.masking")}
    assert (listed["tasks.a.objective.masking.mask"].value, listed["tasks.a.objective.masking.mask"].default) == (1, 1)


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
