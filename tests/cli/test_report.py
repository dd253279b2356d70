"""The command that writes the page of a run."""

import pytest

from bertjax.cli import report
from bertjax.runtime import command_line
from tests.comparison.workdirs import STEPS, record, write


def call(*arguments: str) -> int:
    return command_line.exit_code_of(lambda: report.main(list(arguments)))


def test_a_real_run_has_every_section(undisturbed, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert call(str(undisturbed), f"--out={target}") == 0
    output = capsys.readouterr().out
    assert f"page      {target}" in output and f"bertjax analyze {undisturbed}" in output
    html = target.read_text(encoding="utf-8")
    assert "http" not in html.replace('http-equiv="', "") and "Skipped" not in html
    for title in ("Guesses over time", "What a row of data looks like", "Throughput and goodput", "Environment"):
        assert f">{title}</h2>" in html
    assert html.count('class="tokens"') == 2 and html.count("<svg ") >= 3


def test_it_is_written_into_the_workdir_unless_named(tmp_path):
    root = write(tmp_path / "run", [record(10, 6.0), record(STEPS, 4.0)])
    assert report.run(root) == root / "report.html"
    assert "Training run" in (root / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [("missing",), ("ftp://host/run",), ("run", "--out=page.pdf"), ("run", "--parts=patterns"), ()],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = write(tmp_path / "run", [record(10, 6.0)])
    before = sorted(root.iterdir())
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sorted(root.iterdir()) == before and not (tmp_path / "page.pdf").exists()
