"""Configurations: what settings default to and become, and which of them identify a run."""

import dataclasses
import json

import pytest

from bertjax.cli import train
from bertjax.config import config_file, settings
from bertjax.config.config import CONFIG_UNIONS, Config, from_dict, to_dict
from bertjax.config.config_file import load
from bertjax.config.typed import differences
from bertjax.models.config import Execution
from bertjax.runtime.errors import UserError


def test_steps_and_rows_that_depend_on_the_data_are_not_known():
    config = from_dict({"stages": [{"epochs": 3.0, "examples": 16}, {"steps": 20_000, "batch": 8}]})
    assert config.open_settings == ("stages.0.epochs", "stages.0.examples")
    assert (config.stages[0].steps, config.stages[0].batch) == (None, None)
    resolved = dataclasses.replace(config.stages[0], steps=20_000, batch=15)
    config = dataclasses.replace(config, stages=(resolved, config.stages[1]))
    assert config.open_settings == () and config.identity("abc")["stages"][0]["epochs"] == 3.0
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_classes_are_open_until_the_training_file_is_read():
    examples = {"kind": "labeled_text", "train": "a.tsv", "heldout": "b.tsv"}
    task = {"objective": {"kind": "classification"}, "examples": examples}
    assert from_dict({"tasks": {"a": task}}).open_settings == ("tasks.a.objective.classes",)
    task["objective"]["classes"] = ["bad", "good"]
    assert from_dict({"tasks": {"a": task}}).open_settings == ()


def test_runs_whose_tasks_have_another_order_are_different():
    config = load("configs/ernie2.py:smoke")
    reordered = dataclasses.replace(config, tasks=dict(sorted(config.tasks.items())))
    changed = differences(config.identity("abc"), reordered.identity("abc"))
    assert changed[0] == "task_order.0: 'knowledge' -> 'capitals'"
    assert "task_order" not in load("configs/tiny.py").identity("abc")


def _choices(seq_len: int, **settings) -> dict:
    examples = {"kind": "choices", "choices": ["a", "b", "c", "d"]} | settings
    task = {"objective": {"kind": "multiple_choice"}, "examples": examples}
    return {"tasks": {"race": task}, "stages": [{"seq_len": seq_len}]}


@pytest.mark.parametrize(
    "mapping",
    [
        _choices(2048),
        _choices(4096, max_tokens=512),
        _choices(2048, choices=["options"], max_tokens=512),
        {"tasks": {"mlm": {"examples": {"max_tokens": 512}}}, "stages": [{"seq_len": 4096}]},
    ],
)
def test_a_row_may_be_longer_than_the_position_table(mapping):
    config = from_dict(mapping)
    assert config.model.max_positions == 512 and from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    "mapping, longest",
    [(_choices(2052), 513), (_choices(2048, choices=["options"]), 1024), (_choices(4096, max_tokens=600), 600)],
)
def test_examples_longer_than_the_position_table(mapping, longest):
    with pytest.raises(UserError) as caught:
        from_dict(mapping)
    assert str(caught.value) == (
        f"stages.0.seq_len={mapping['stages'][0]['seq_len']} allows examples of {longest} tokens in tasks.race, and "
        "model.max_positions=512; set tasks.race.examples.max_tokens=512, or lower stages.0.seq_len"
    )


@pytest.mark.parametrize("kind", ["modern", "llama", "xlnet", "deberta", "lstm"])
def test_encoders_without_a_position_table_have_no_longest_example(kind):
    """What leaves the run states how long its examples were."""
    positions = {"kind": "xlnet"} if kind == "xlnet" else {"positions": "none"}
    model = {"block": {"kind": kind}, "embeddings": positions}
    config = from_dict({"model": model, "stages": [{"seq_len": 1024}]})
    assert config.model.max_positions == 1024
    assert from_dict({"model": model}).model.max_positions == 512


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


def test_sources_are_identified_by_content_and_not_by_path():
    def identity(**book):
        return from_dict({"data": {"sources": {"law": {"corpus": "law"}, "book": book}}}).identity("f00d")

    first = identity(corpus="books")
    assert identity(corpus="copy/of/books") == first
    assert identity(corpus="books", weight=2) != first and identity(corpus="books", text_field="body") != first


def test_the_encoder_is_executed_as_backend_and_user_choose():
    config = from_dict({"model": {"preset": "mini"}})
    encoder = config.encoder(100, "cpu")
    assert encoder.execution == Execution("float32") and encoder.vocab_size == 100
    assert config.encoder(100, "tpu").execution.dtype == config.encoder(100, "gpu").execution.dtype == "bfloat16"
    configured = from_dict({"runtime": {"dtype": "float32", "unroll": True, "remat": "dots"}})
    assert configured.encoder(100, "tpu").execution == Execution("float32", True, "dots")
    fixed = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=99))
    with pytest.raises(
        UserError, match="model.vocab_size=99 does not match the 100 ids of the tokenizer; set model.vocab_size=0"
    ):
        fixed.encoder(100, "cpu")


@pytest.mark.parametrize(
    "objective, expected",
    [
        ({"kind": "electra", "masking": {"rate": 0.3}}, ("tokens", 0.3, 1.0)),
        ({"kind": "electra", "masking": {"kind": "tokens", "rate": 0.3}}, ("tokens", 0.3, 1.0)),
        ({"kind": "diffusion", "masking": {"rate": 0.5}}, ("uniform", 0.5, 1.0)),
        ({"kind": "span_boundary", "masking": {"rate": 0.2}}, ("spans", 0.2, 0.8)),
        ({"kind": "electra", "masking": {"kind": "words"}}, ("words", 0.15, 0.8)),
    ],
)
def test_one_setting_of_a_masking_leaves_the_others_as_the_objective_has_them(objective, expected):
    """Only another kind starts from its own defaults."""
    task = {"objective": objective, "examples": {"kind": "full_sentences"}}
    masking = from_dict({"tasks": {"a": task}}).task.objective.masking
    assert (masking.kind, masking.rate, masking.mask) == expected


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
