"""The command line of `bertjax prepare`."""

import subprocess
import sys

import pytest

from bertjax.cli import prepare
from bertjax.runtime.command_line import exit_code_of

CONFIG = "--config=configs/tiny.py"
CORPUS = "".join(f"Document {i} tells a story. It has {i} ends.\n\n" for i in range(100))


@pytest.fixture
def called(capfd):
    """called(*flags) -> (exit code, what was printed, errors) of the command in this process."""

    def call(*flags: str) -> tuple[int, str, str]:
        code = exit_code_of(lambda: prepare.main([CONFIG, "--config.data.workers=0", *flags]))
        output, errors = capfd.readouterr()
        return code, output, errors

    return call


def test_prepare_makes_a_store_and_prints_its_contents(tmp_path):
    """In a process of its own, as a user runs it."""
    (tmp_path / "corpus.txt").write_text(CORPUS)
    flags = [f"--config.data.corpus={tmp_path}/corpus.txt", f"--config.data.store={tmp_path}/stores"]
    flags += ["--config.data.tokenizer.vocab_size=300", "--verify", "--show=2"]
    command = [sys.executable, "-m", "bertjax", "prepare", CONFIG, *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " -m bertjax report " in done.stdout.splitlines()[-1]
    assert "\nrow 1: " in done.stdout and "real tokens" in done.stdout
    [picture] = (tmp_path / "stores").glob("*/plans/*/packing.png")
    assert str(picture) in done.stdout
    [store] = (tmp_path / "stores").glob("corpus-????????????")
    assert str(store) in done.stdout and "every file has the hash that was recorded" in done.stdout


def test_show_needs_at_least_one_row(called):
    assert "argument --show: 0 must be a whole number, at least 1" in called("--show=0")[2]


def test_weights_that_leave_a_source_no_rows_are_refused(called, tmp_path):
    (tmp_path / "corpus.txt").write_text(CORPUS)
    (tmp_path / "more.txt").write_text(CORPUS.replace("story", "tale"))
    sources = [f"--config.data.sources.{name}.corpus={tmp_path}/{name}.txt" for name in ("corpus", "more")]
    flags = (*sources, f"--config.data.store={tmp_path}/stores", "--config.data.tokenizer.vocab_size=300")
    code, output, errors = called(*flags, "--config.data.sources.more.weight=3")
    assert code == 0 and "32 tokens: sources of the rows: corpus 2" in output, errors
    code, _, errors = called(*flags, "--config.data.sources.more.weight=1e-5")
    assert code == 2 and "data.sources.more would have 0.001% of the rows" in errors
