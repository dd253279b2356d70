"""The record of a run, its versions, and its written splits."""

import dataclasses
import hashlib
import logging
import subprocess
import sys

import pytest

from bertjax.config.config import Config, from_dict
from bertjax.runtime.errors import UserError
from bertjax.training import start
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import resolve
from bertjax.training.run import versions
from bertjax.training.run.record import RunRecord, check_identity, start_record, write_record
from bertjax.training.run.versions import foreign_modules, hashes
from bertjax.training.run.workdir import Workdir, append_jsonl
from tests.waiting import LIMIT_SECONDS


def test_a_mark_that_a_disk_shows_late_is_waited_for(tmp_path, monkeypatch):
    """A client of NFS may remember that the file was absent before process 0 wrote it."""
    workdir, looks = Workdir.at(tmp_path), []
    mark = workdir.root / "mark"

    def look_again(seconds):
        looks.append(seconds)
        if len(looks) == 40:
            mark.touch()

    monkeypatch.setattr(start.time, "sleep", look_again)
    start.wait_for(mark, workdir)
    assert sum(looks) == 40.0
    mark.unlink()
    with pytest.raises(UserError, match="is not the workdir of process 0; name one that all processes share"):
        start.wait_for(mark, workdir)


@pytest.mark.parametrize("flag", [["--on-event=curl -H 'Bearer xyz'"], ["--on-event", "curl -H 'Bearer xyz'"]])
def test_secrets_of_a_command_are_not_recorded(monkeypatch, flag):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bertjax.train", "--config=a b.py", *flag, "--workdir=run"])
    command = start_record(False, False, {})["command"]
    assert "xyz" not in command and command.endswith("--workdir=run") and "--config=a b.py" in command
    assert "--on-event" in command and "..." in command


def record_of(store, **stage) -> RunRecord:
    """The record of a run with a warm-up of a tenth of its steps."""
    settings = from_dict(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32},
            "optimizer": {"warmup_share": 0.1},
            "stages": [{"seq_len": 32, "batch": 4} | stage],
        }
    )
    config = resolve(Feeds(settings, store)).config
    return RunRecord(config, settings, config.identity(store.fingerprint), store.tokenizer.vocab_size)


@pytest.mark.parametrize("name, less, more", [("steps", 20, 40), ("epochs", 2.0, 3.0), ("flops", 1e9, 2e9)])
def test_a_run_may_become_longer_however_its_length_is_given(store, tmp_path, name, less, more):
    workdir, before, longer = Workdir.at(tmp_path), record_of(store, **{name: less}), record_of(store, **{name: more})
    assert before.config.stages[0].steps < longer.config.stages[0].steps
    assert before.config.optimizer.warmup_steps < longer.config.optimizer.warmup_steps
    write_record(workdir, before, store.tokenizer)
    assert check_identity(workdir, before, longer=False) and check_identity(workdir, longer, longer=True)
    with pytest.raises(UserError, match=rf"\(stages.0.{name}: \S+ -> \S+\); add --longer to train it longer"):
        check_identity(workdir, longer, longer=False)
    write_record(workdir, longer, store.tokenizer)
    with pytest.raises(UserError, match="a run cannot be shortened"):
        check_identity(workdir, before, longer=True)


def test_values_that_follow_otherwise_from_the_same_settings_are_refused(store, tmp_path):
    """As if the run had been started by a version that computes the steps of an epoch in another way."""
    workdir, record = Workdir.at(tmp_path), record_of(store, epochs=2.0)
    (stage,) = record.config.stages
    config = dataclasses.replace(record.config, stages=(dataclasses.replace(stage, steps=stage.steps - 1),))
    older = dataclasses.replace(record, config=config, identity=config.identity(store.fingerprint))
    write_record(workdir, older, store.tokenizer)
    with pytest.raises(UserError, match=r"this bertjax derives other values \(stages.0.steps: "):
        check_identity(workdir, record, longer=False)


GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Wait for git, however slow it is: without its answer the commit would not be known."""
    monkeypatch.setattr(versions, "_GIT_SECONDS", LIMIT_SECONDS)


def repository(folder) -> str:
    """Make a repository of all files in a folder, and return its commit."""
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout[
        :-1
    ]


def install(folder, **packages: str) -> None:
    """Write what pip leaves of distributions of these versions."""
    for name, version in packages.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def workdir(tmp_path):
    """A workdir with a checkpoint and one start, of these versions."""
    workdir = Workdir.at(tmp_path / "run")
    (workdir.checkpoints / "10").mkdir(parents=True)
    append_jsonl(workdir.starts, {"versions": versions.versions()})
    return workdir


def start_with(workdir, **changed: str) -> None:
    append_jsonl(workdir.starts, {"versions": versions.versions() | changed})


@pytest.mark.parametrize("library", ["jax", "jaxlib", "flax", "optax"])
def test_another_version_of_what_computes_is_refused_unless_accepted(workdir, caplog, library):
    start_with(workdir, **{library: "0.0.1"})
    now = versions.versions()[library]
    with pytest.raises(UserError) as refused:
        versions.check(workdir, other_versions=False)
    assert str(refused.value) == (
        f"the run in {workdir.root} was last started with other versions ({library}: 0.0.1 -> {now}); install those "
        "again (versions.json lists all), or add --other-versions to accept another result"
    )
    versions.check(workdir, other_versions=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"({library}: 0.0.1 -> {now})" in caplog.text
    start_with(workdir, numpy="0.0.1")
    versions.check(workdir, other_versions=False)
    assert "(numpy: 0.0.1 -> " in caplog.text


def test_a_changed_file_of_a_foreign_class_is_refused_unless_accepted(workdir, monkeypatch, tmp_path, caplog):
    """The class itself, of a file in a repository."""
    source = tmp_path / "lab" / "mine_rtd.py"
    source.parent.mkdir()
    source.write_text("from bertjax.objectives.pretraining.mlm import MaskedLM\n\nclass Mine(MaskedLM):\n    pass\n")
    commit = repository(source.parent)
    monkeypatch.syspath_prepend(source.parent)
    config = from_dict(
        {"tasks": {"mine": {"objective": {"kind": "mine_rtd:Mine"}, "examples": {"kind": "full_sentences"}}}},
        trust_code=True,
    )
    assert foreign_modules(Config().foreign_kinds) == {}
    before = foreign_modules(config.foreign_kinds)
    assert tuple(before["mine_rtd"].values()) == (hashlib.sha256(source.read_bytes()).hexdigest()[:12], commit, "")
    start_with(workdir, **hashes(before))
    versions.check(workdir, False, hashes(before))
    source.write_text(source.read_text() + "# changed\n")
    after = foreign_modules(config.foreign_kinds)
    assert after["mine_rtd"]["commit"] == f"{commit}-dirty"
    with pytest.raises(UserError, match=r"mine_rtd \(sha256\): \w{12} -> \w{12}\); .*--other-versions"):
        versions.check(workdir, False, hashes(after))
    versions.check(workdir, True, hashes(after))
    assert "mine_rtd (sha256)" in caplog.text
    (inside := source.parent / "copies" / "bertjax").mkdir(parents=True)
    assert versions.commit_of(inside) == "", "the repository is not that of bertjax"
