"""The command that compares runs."""

import json

import pytest

from bertjax import cli, compare
from tests.comparison.workdirs import STEPS, record, write


@pytest.fixture
def here(tmp_path, monkeypatch):
    """`runs/` with a finished run, one under way with other settings, and a folder of three seeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    records = [record(10, 6.0, 5.5), record(STEPS, 4.0, 4.25)]
    write(tmp_path / "runs/first", records, baseline={"unigram_loss": 6.5})
    write(tmp_path / "runs/second", records[:1], {"optimizer": {"warmup_steps": 2, "learning_rate": 1e-3}})
    for seed, loss in enumerate((3.0, 4.0, 5.0)):
        last = record(STEPS, 4.0, loss)
        write(tmp_path / f"runs/many/seed={seed}", [records[0], last], {"seed": seed}, baseline={"unigram_loss": 6.5})
    return tmp_path


def call(*arguments: str) -> int:
    return cli.exit_code_of(lambda: compare.main(list(arguments)))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]


def test_tables_a_picture_and_what_to_do_next(here, capsys):
    assert call("runs/first", "runs/second", "runs/many") == 0
    output = capsys.readouterr().out
    rows = {row[0]: row[1:] for line in output.splitlines() if (row := cells(line))}
    assert rows["optimizer.learning_rate"] == ["0.0001", "0.001", "0.0001"]
    assert rows["seed"] == ["0", "0", "0, 1, 2"]
    assert not [name for name in rows if name.startswith(("model.", "stages.", "runtime.", "optimizer.w"))]
    assert rows["held out: mlm_loss"] == ["4.2500", "5.5000", "4.0000 ± 1.0000 [3.0000, 5.0000]"]
    assert rows["baseline: unigram_loss"] == ["6.5000", "-", "6.5000"], "the same for all seeds"
    assert rows["finished"] == ["yes", "no, of 20 steps", "3 of 3 seeds"]
    assert rows["steps"] == ["20", "10", "20"] and rows["seconds"] == ["50.0", "20.0", "50.0"]
    assert rows["FLOPs"][0] == "2.000e+04"
    *_, curves, following = output.splitlines()
    assert curves == "curves    compare.png" and (here / "compare.png").stat().st_size
    assert following.endswith("-m bertjax.compare runs/first runs/second runs/many --x=flops --out=compare.png")


def test_runs_that_differ_in_nothing(here, capsys):
    write(here / "runs/again", [record(10, 6.0)])
    assert call("runs/first", "runs/again") == 0
    output = capsys.readouterr().out
    assert "no setting differs" in output and "settings that differ" not in output


def test_json_has_all_differences_and_numbers(here, capsys):
    assert call("runs/first", "runs/many", "--json", "--x=seconds", "--metric=mlm_accuracy", "--out=new/a.png") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"]["many"] == {"path": "runs/many", "runs": 3, "finished": 3, "planned_steps": STEPS}
    assert printed["differences"] == {
        "identity": {"seed": {"first": 0, "many": {"each": [0, 1, 2]}}},
        "execution": {},
        "content": {},
    }
    assert printed["numbers"]["many"]["heldout"]["mlm_loss"] == {
        "values": [3.0, 4.0, 5.0],
        "mean": 4.0,
        "deviation": 1.0,
        "interval": [3.0, 5.0],
    }
    assert printed["numbers"]["first"]["spent"]["tokens_per_second"]["values"] == [40.0]
    assert printed["curves"] == "new/a.png" and (here / "new/a.png").exists()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "the following arguments are required: RUN; see python -m bertjax.compare --help"),
        (["runs/first"], "runs/first is the only run; name two runs or more"),
        (["runs/first", "runs/first/"], "runs/first/ is named twice; name each run once"),
        (["runs/first", "runs/none"], "'runs/none' does not exist; name a workdir"),
        (["runs/first", "runs"], "'runs' is not a run: it has neither config.json nor folders seed=N with one"),
        (
            ["runs/first", "runs/begun"],
            "'runs/begun' has no line in metrics.jsonl yet; a run writes the first at step 10",
        ),
        (["runs/first", "runs/torn"], "runs/torn/metrics.jsonl:2 is damaged ("),
        (["runs/first", "runs/odd"], "runs/odd/metrics.jsonl:2 is damaged (it is not a JSON object); delete the line"),
        (["runs/first", "runs/unread"], "runs/unread/config.json is damaged ("),
        (["runs/first", "runs/short"], "runs/short/summary.json is damaged (it has no eval, baseline"),
        (
            ["runs/first", "runs/second", "--x=hours"],
            "--x=hours is not an axis; choose one of steps, tokens, flops, seconds",
        ),
        (
            ["runs/first", "runs/second", "--metric=f1"],
            "--metric=f1 is in no record; choose one of mlm_accuracy, mlm_loss\n",
        ),
        (["runs/first", "runs/second", "--out=a.pdf"], "--out=a.pdf must end in .png"),
    ],
)
def test_bad_input_is_reported_in_one_line(here, capsys, arguments, complaint):
    lines = {"begun": "", "torn": '{"step": 1}\n{"step": \n', "odd": '{"step": 1}\n3\n'}
    for name in (*lines, "unread", "short"):
        root = write(here / "runs" / name, [record(1, 1.0)])
        if name in lines:
            (root / "metrics.jsonl").write_text(lines[name])
    (here / "runs/unread/config.json").write_text("{")
    (here / "runs/short/summary.json").write_text("{}")
    assert call(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("error: ") and complaint in output.err
    assert not list(here.rglob("*.png"))
