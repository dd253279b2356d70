"""Apache Beam makes the store of the local runner, byte for byte. Bad flags are one line."""

import dataclasses
import sys

import pytest

from bertjax.cli import prepare as command
from bertjax.data.preparation import shards
from bertjax.data.preparation.prepare import prepare
from bertjax.runtime.command_line import exit_code_of
from tests.data.preparation.corpora import content
from tests.data.preparation.test_parts import CLEANING, mixed


def test_apache_beam_that_is_not_installed_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert exit_code_of(lambda: command.main(["--config=configs/tiny.py", "--runner=FnApiRunner"])) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --runner=FnApiRunner needs Apache Beam (") and error.count("\n") == 1
    assert error.endswith("; pip install '.[beam]'\n")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--runner=NoRunner"], "--runner=NoRunner cannot be made: Unexpected pipeline runner: NoRunner"),
        (["--runner=PortableRunner"], "--runner=PortableRunner needs --temp_location, a folder that all workers"),
        (["--runner=FnApiRunner", "--direct_num_workers=x"], "flags of Apache Beam: argument --direct_num_workers"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    pytest.importorskip("apache_beam")
    assert exit_code_of(lambda: command.main(["--config=configs/tiny.py", *flags])) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


@pytest.mark.parametrize("sources", ["one", "two and all steps"])
def test_beam_writes_the_bytes_of_the_local_runner(config, tmp_path, monkeypatch, sources):
    """Every bundle runs twice."""
    pytest.importorskip("apache_beam")
    from bertjax.data.preparation.beam import Beam

    monkeypatch.setattr(shards, "SHARD_BYTES", 4000)
    if sources != "one":
        config = mixed(tmp_path, tokenizer=config.tokenizer, **CLEANING)
    stores = [
        prepare(dataclasses.replace(config, store=f"{tmp_path}/local-{workers}", workers=workers)).path
        for workers in (1, 3)
    ]
    beam = Beam("FnApiRunner", ["--direct_runner_bundle_repeat=1"])
    stores.append(prepare(dataclasses.replace(config, store=f"{tmp_path}/beam"), beam).path)
    first, *others = map(content, stores)
    assert all(other == first for other in others)


@pytest.mark.slow
def test_processes_of_beam_write_the_bytes_of_the_local_runner(config, tmp_path):
    pytest.importorskip("apache_beam")
    from bertjax.data.preparation.beam import Beam

    config = mixed(tmp_path, tokenizer=config.tokenizer, **CLEANING)
    beam = Beam("FnApiRunner", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
    made = prepare(dataclasses.replace(config, store=f"{tmp_path}/beam"), beam).path
    assert content(made) == content(prepare(config).path)
