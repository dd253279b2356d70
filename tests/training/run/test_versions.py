"""Versions: which are recorded, and what is refused when they differ."""

import hashlib
import json
import logging
import subprocess
import sys

import pytest

from bertjax.config.config import Config, from_dict
from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run import versions
from bertjax.training.run.foreign_code import foreign_modules, hashes
from bertjax.training.run.workdir import Workdir, append_jsonl
from tests.waiting import LIMIT_SECONDS

GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Wait for git, however slow it is: without its answer the commit would not be known."""
    monkeypatch.setattr(versions, "_GIT_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def package(tmp_path):
    """The package of a clone that lies in a folder of another repository."""
    package = tmp_path / "other" / "clone" / "bertjax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    repository(tmp_path / "other")
    return package


def repository(folder) -> str:
    """Make a repository of all files in a folder, and return its commit."""
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout[
        :-1
    ]


def test_the_commit_is_that_of_bertjax_alone(package):
    assert versions.commit_of(package) == ""
    commit = repository(package.parent)
    assert versions.commit_of(package) == commit
    (package / "__init__.py").write_text("changed")
    assert versions.commit_of(package) == f"{commit}-dirty"
    (package / "COMMIT").write_text("0123abc\n")
    assert versions.commit_of(package) == "0123abc"


def test_the_code_has_a_hash_of_its_own(package):
    """An installed package has no commit, and a changed clone has the same one whatever was changed."""
    repository(package.parent)
    hashes = []
    for content in ("", "x = 1", "x = 2", ""):
        (package / "__init__.py").write_text(content)
        versions.hash_of.cache_clear()
        hashes.append(versions.hash_of(package))
    assert hashes[0] == hashes[3] and len(set(hashes)) == 3
    (package / "recipes").mkdir()
    (package / "recipes" / "mine.py").write_text("a configuration")
    (package / "data.json").write_text("{}")
    versions.hash_of.cache_clear()
    assert versions.hash_of(package) == hashes[0]


def test_a_git_that_is_missing_or_hangs_is_not_waited_for(package, tmp_path, monkeypatch):
    repository(package.parent)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.commit_of(package) == ""
    (tmp_path / "git").write_text(f"#!{sys.executable} -SE\nimport time\ntime.sleep(600)\nprint('0123abc')\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr(versions, "_GIT_SECONDS", 0.2)
    assert versions.commit_of(package) == "", "if it were waited for, it would print a commit"


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


@pytest.mark.parametrize("name", ["bertjax", "numpy"])
def test_another_commit_or_library_that_does_not_compute_is_printed(workdir, caplog, name):
    start_with(workdir, **{name: "0.0.1"})
    versions.check(workdir, other_versions=False)
    assert f"({name}: 0.0.1 -> {versions.versions()[name]})" in caplog.text


@pytest.mark.parametrize("record", [{}, {"versions": None}, {"versions": ["jax"]}])
def test_a_start_without_versions_is_reported(workdir, record):
    workdir.starts.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match="starts.jsonl is damaged .its last line has no versions"):
        versions.check(workdir, other_versions=False)


@pytest.mark.parametrize("name", ["bertjax", "jax"])
def test_processes_of_other_versions_are_refused_unless_accepted(tmp_path, monkeypatch, caplog, name):
    monkeypatch.setattr(processes, "gather", lambda here, *_: [here, here | {name: "0.0.1"}])
    workdir = Workdir.at(tmp_path)
    with pytest.raises(UserError, match=rf"process 1 has other versions than process 0 \({name}: \S+ -> 0.0.1\)"):
        versions.check(workdir, other_versions=False)
    versions.check(workdir, other_versions=True)
    assert f"{name}: " in caplog.text


def test_processes_may_differ_in_what_does_not_compute(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(processes, "gather", lambda here, *_: [here, here | {"numpy": "0.0.1"}])
    versions.check(Workdir.at(tmp_path), other_versions=False)
    assert "process 1 has other versions than process 0 (numpy: " in caplog.text


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
    assert before["mine_rtd"] == (hashlib.sha256(source.read_bytes()).hexdigest()[:12], commit, "")
    start_with(workdir, **hashes(before))
    versions.check(workdir, False, hashes(before))
    source.write_text(source.read_text() + "# changed\n")
    after = foreign_modules(config.foreign_kinds)
    assert after["mine_rtd"].commit == f"{commit}-dirty"
    with pytest.raises(UserError, match=r"mine_rtd \(sha256\): \w{12} -> \w{12}\); .*--other-versions"):
        versions.check(workdir, False, hashes(after))
    versions.check(workdir, True, hashes(after))
    assert "mine_rtd (sha256)" in caplog.text
