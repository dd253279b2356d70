"""The command that compares runs."""

import csv
import json
from types import SimpleNamespace

import pytest
from scipy import stats

from bertjax.cli import compare
from bertjax.comparison.numbers import Numbers
from bertjax.comparison.runs import Differences, Entry
from bertjax.comparison.tables import Comparison, print_comparison
from bertjax.runtime import command_line
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
    return command_line.exit_code_of(lambda: compare.main(list(arguments)))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]


def test_tables_a_picture_and_what_to_do_next(here, capsys):
    assert call("runs/first", "runs/second", "runs/many") == 0
    output = capsys.readouterr().out
    rows = {row[0]: row[1:] for line in output.splitlines() if (row := cells(line))}
    assert rows["optimizer.learning_rate"] == ["0.0001", "0.001", "0.0001"]
    assert rows["seed"] == ["0", "0", "0, 1, 2"]
    assert not [name for name in rows if name.startswith(("model.", "stages.", "runtime.", "optimizer.w"))]
    assert rows["held out: mlm_loss"] == ["4.2500", "5.5000", "4.0000 ± 1.0000 [1.5159, 6.4841] n=3"]
    assert "[95% interval]: with several seeds, of the mean over other seeds" in " ".join(output.split())
    assert rows["parameters"] == ["1,000", "-", "1,000"]
    assert rows["baseline: unigram_loss"] == ["6.5000", "-", "6.5000"], "the same for all seeds"
    assert rows["finished"] == ["yes", "no, of 20 steps", "3 of 3 seeds"]
    assert rows["steps"] == ["20", "10", "20"] and rows["seconds"] == ["50.0", "20.0", "50.0"]
    assert rows["useful FLOPs"][0] == "2.000e+04"
    assert rows["mlm_loss"] == ["+1.2500", "-0.2500 n=1 and 3"], "one run of the first: nothing was repeated"
    *_, curves, following = output.splitlines()
    assert curves == "curves    compare.png" and (here / "compare.png").stat().st_size
    assert following.endswith("-m bertjax compare runs/first runs/second runs/many --x=flops --out=compare.png")


def test_runs_that_differ_in_nothing(here, capsys):
    write(here / "runs/again", [record(10, 6.0)])
    assert call("runs/first", "runs/again") == 0
    output = capsys.readouterr().out
    assert "no setting differs" in output and "settings that differ" not in output


def test_each_fingerprint_is_cut_alone(capsys):
    entries = [Entry(name, name, (SimpleNamespace(finished=True),)) for name in "xy"]
    content = {"init_from": [("a" * 12, "b" * 12), ("a" * 12, "c" * 12)]}
    print_comparison(Comparison(entries, Differences({}, {}, content), [Numbers({}, {}, {})] * 2, [{}], {}))
    assert "aaaaaaaa, bbbbbbbb" in capsys.readouterr().out


def test_seeds_are_paired_and_tables_have_every_number(here, capsys):
    """Against SciPy's paired t-test; losses of the seeds are 3, 4, 5 and 3.1, 4.3, 5.2."""
    for seed, loss in enumerate((3.1, 4.3, 5.2)):
        write(here / f"runs/other/seed={seed}", [record(STEPS, 4.0, loss)], {"seed": seed}, baseline={})
    for name in ("table.csv", "new/table.csv"):
        assert call("runs/many", "runs/other", "--json", f"--table={name}") == 0
    effect = json.loads(capsys.readouterr().out.split("\n}\n")[1] + "}")["effects"]["other"]["mlm_loss"]
    expected = stats.ttest_rel((3.1, 4.3, 5.2), (3.0, 4.0, 5.0))
    assert (effect["paired"], effect["covers"]) == (True, "seeds")
    assert effect["p"] == pytest.approx(expected.pvalue) and effect["value"] == pytest.approx(0.2)
    assert (effect["low"], effect["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    with open(here / "table.csv") as file:
        first, second = [row for row in csv.DictReader(file) if row["metric"] == "mlm_loss"]
    assert (first["run"], first["n"], first["p"], second["covers"]) == ("many", "3", "", "seeds")
    assert (second["parameters"], second["n_first"], second["other_task"]) == ("1000.0", "3", "")
    assert float(second["difference"]) == effect["value"] and float(second["p"]) == effect["p"]
    assert call("runs/many", "runs/other", "--metric=mlm_loss", "--table=one.csv") == 0
    assert "accuracy" in (here / "new/table.csv").read_text() and "accuracy" not in (here / "one.csv").read_text()


def test_the_folder_of_a_sweep_is_its_combinations_and_sizes_have_a_law(here, capsys):
    """The best loss of each budget is 20 x FLOPs^-0.05; a fourth run is a little cheaper and worse."""
    for number, size in enumerate((1000, 2000, 4000, 8000)):
        flops = 10.0 ** (6 + number) if number < 3 else 0.9e8
        end = record(STEPS, 4.0, 20 * flops**-0.05 + (number == 3)) | {"flops": flops}
        middle = record(10, 5.0, 19.0) | {"flops": flops / 2}
        run = write(here / f"runs/sizes/model.width={size}", [middle, end], baseline={})
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"parameters": size}))
    (here / "runs/sizes/sweep.json").write_text("{}")
    write(here / "runs/sizes/model.width=9", [record(10, 5.0, 1.0) | {"flops": 1e10}], baseline={}, finished=False)
    assert call("runs/sizes", "--x=flops", "--metric=mlm_loss", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [*shown["runs"]] == [f"model.width={size}" for size in (1000, 2000, 4000, 8000, 9)]
    assert shown["laws"]["mlm_loss"] == pytest.approx({"factor": 20.0, "exponent": 0.05})


def test_tables_name_what_has_not_finished_and_hold_no_formulas(here, capsys):
    for number, step in enumerate((10, 12)):
        for seed in (0, 1):
            lines = [record(step, 4.0, 3.0 + number + seed / 10)]
            write(here / f"runs/early{number}/seed={seed}", lines, {"seed": seed}, baseline={}, finished=False)
    runs_of = [f"{name}={path}" for name, path in (("+2-3", "runs/early0"), ("@x", "runs/early1"), ("ok", "runs/many"))]
    assert call(*runs_of, "--table=a.csv") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "+2-3 has not finished: last evaluation at step 10 of 20, 0 of 2 seeds" in output
    with open(here / "a.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "mlm_loss"]
    assert [row["run"] for row in rows] == ["'+2-3", "'@x", "ok"]
    assert [row["unfinished"].partition(" of")[0] for row in rows] == [
        "last evaluation at step 10", "last evaluation at step 12", ""
    ]  # fmt: skip
    assert [row["p"] for row in rows] == ["", "", ""] and [row["covers"] for row in rows] == ["", "", ""]
    assert float(rows[2]["difference"]) < 1.0 and rows[1]["deviation"][0] != "'"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "the following arguments are required: RUN; see python -m bertjax compare --help"),
        (["runs/first", "runs/first/"], "runs/first/ is named twice; name each run once"),
        (["runs/first", "runs/none"], "'runs/none' does not exist; name a workdir"),
        (["runs/first", "runs"], "'runs' is not a run: it has neither config.json nor folders seed=N with one"),
        (
            ["runs/first", "runs/begun"],
            "'runs/begun' has no line in metrics.jsonl yet; a run writes the first at step 10",
        ),
        (["A=runs/sweep"], "'runs/sweep' holds a sweep, whose combinations have names of their own; leave NAME= out"),
        (["runs/sweep"], "'runs/sweep' is the folder of a sweep without a run; start it with the same command again"),
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
        (["runs/first", "runs/second", "--out=a.jpg"], "--out=a.jpg must end in .png, .svg, .pdf"),
        (["runs/new", "--table=a.csv"], "--table=a.csv would be empty: no run has an evaluation yet"),
        (["runs/first", "--table=a.xls"], "--table=a.xls must end in .csv"),
        (["runs/first", "--log=z"], "--log: invalid choice: 'z'"),
        (["runs/first", "--smooth=0"], "--smooth: 0 must be a whole number, at least 1"),
        (["=runs/first"], "'=runs/first' has an empty name or path; write NAME=WORKDIR"),
        (["a=runs/first", "a=runs/second"], "the runs of a differ in more than the seed (optimizer.learning_rate: "),
        (["a=runs/first", "a=runs/many"], "a has two runs of seed 0; name one run for each seed"),
        (["first=runs/second", "runs/first"], "runs/first has the name first of another run; write NAME=runs/first"),
        (["runs/first", "runs/scored"], "runs/scored/scores.npz is damaged ("),
    ],
)
def test_bad_input_is_reported_in_one_line(here, capsys, arguments, complaint):
    lines = {"begun": "", "torn": '{"step": 1}\n{"step": \n', "odd": '{"step": 1}\n3\n'}
    for name in (*lines, "new", "unread", "short"):
        root = write(here / "runs" / name, [record(1, 1.0)])
        if name in lines:
            (root / "metrics.jsonl").write_text(lines[name])
    scored = write(here / "runs/scored", [record(STEPS, 1.0)], baseline={})
    (scored / "scores.npz").write_bytes(b"no archive")
    (here / "runs/unread/config.json").write_text("{")
    (here / "runs/sweep").mkdir()
    (here / "runs/sweep/sweep.json").write_text("{}")
    (here / "runs/short/summary.json").write_text("{}")
    assert call(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("error: ") and complaint in output.err
    assert not list(here.rglob("*.png"))


def test_runs_of_one_name_are_the_seeds_of_one_side(here, capsys):
    paths = [f"runs/many/seed={seed}" for seed in (1, 0, 2)]
    assert call(*(f"ours={path}" for path in paths), "--json") == 0
    of_folders = json.loads(capsys.readouterr().out)
    assert call("ours=runs/many", "--json") == 0
    assert of_folders["numbers"] == json.loads(capsys.readouterr().out)["numbers"]


def test_numbers_of_another_held_out_task_are_neither_subtracted_nor_left_unmarked(here, capsys):
    objective = {"kind": "bert", "masking": {"kind": "tokens", "rate": 0.4}}
    write(
        here / "runs/rate", [record(STEPS, 4.0, 4.0)], {"tasks": {"bert": {"objective": objective}}}, {}, store="b" * 64
    )
    reason = "objective.masking.rate: 0.15 -> 0.4"
    assert call("runs/many", "runs/rate", "--table=a.csv", "--out=a.svg") == 0
    output = capsys.readouterr().out
    rows = {row[0]: row[1:] for line in output.splitlines() if (row := cells(line))}
    assert rows["held out: mlm_loss"][1] == "4.0000*" and rows["mlm_loss"] == ["*"]
    assert "* mlm_loss, mlm_accuracy: rate is not compared with many" in output and reason in " ".join(output.split())
    with open(here / "a.csv") as file:
        _, row = [row for row in csv.DictReader(file) if row["metric"] == "mlm_loss"]
    assert (row["difference"], row["p"], row["other_task"]) == ("", "", reason)
    assert "<!-- rate* -->" in (here / "a.svg").read_text()
