"""The compression benchmark: every row compares the same student, and only missing cells run."""

import gzip
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compression
from benchmarks.arms import shuffled_importance, train_layer_bits
from benchmarks.compression import Cell, cells, missing
from benchmarks.compression_rows import ROWS
from benchmarks.compression_table import markdown
from benchmarks.compression_tasks import TASKS, Place
from benchmarks.resumable import finished
from bertjax import importance
from bertjax.cli import exit_code_of
from bertjax.errors import RunFailed
from bertjax.importance import Importance
from bertjax.models.config import EncoderConfig
from configs.finetune import distill

OBJECTIVE = "--config.tasks.classify.objective."
# {row: trainings that its baseline lacks, of the student as its paper has them, or of its teacher}
MORE = {"pretrained-distilled": ["OUT/distilled"], "tinybert-general": ["OUT/layers"]}
MORE |= {f"internal-{order}": ["OUT/layer-1", "OUT/layer-2"] for order in ("progressive", "stacked")}
MORE |= {f"small-{width}": [f"small-{width}-alone-pretrained-0", "continued-pretrained-0"] for width in (96, 48)}
PLACE = Place("SST-2", 0, Path("DATA"), "CORPUS", Path("ADAPTED"), Path("TEACHER"), Path("OUT"))


def test_the_page_shows_the_committed_lines():
    page = (Path(__file__).parents[2] / "docs" / "results" / "compression.md").read_text()
    tables = markdown(finished(compression.RESULTS))
    assert tables and all(table in page for table in tables.split("\n\n"))


def line(row, seed, accuracy, run=1):
    cell = Cell(row, "SST-2", seed)
    return cell._asdict() | {
        "run": run,
        "commands": cell.fingerprint,
        "eval": {"accuracy": accuracy},
        "baseline": {"majority_accuracy": 0.5},
    }


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].without])
def test_a_method_and_its_baseline_start_alike_and_train_as_often(row):
    ours, theirs = (ROWS[name].commands(PLACE) for name in (row, ROWS[row].without))
    shape = (
        "--config.init_from",
        "--config.init_layers",
        "--config.model.layers",
        "--config.model.width",
        "--config.stages",
        "--quantize",
    )

    def shapes(commands):
        runs = [[flag for flag in command if flag.startswith(shape)] for command in commands if "train" in command[0]]
        return [[flag for flag in run if "OUT" not in flag and "pretrained" not in flag] for run in runs]

    more = {f"--workdir={folder}" for folder in MORE.get(row, ())}
    ours = [command for command in ours if not more & set(command)]
    assert len(shapes(ours)) == len(shapes(theirs)) or row == "four-bits-trained"
    # configs/distilbert.py cuts the layers itself; the epochs of the two others are tested below.
    if row not in ("distilbert", "four-bits-trained", "internal-progressive", "internal-stacked"):
        assert shapes(ours) == shapes(theirs)


@pytest.mark.parametrize(
    ("row", "pairs"),
    [
        ("internal-progressive", ([1, 2], [2, 4], [3, 6])),
        ("internal-stacked", ([1, 2], [1, 2, 2, 4], [1, 2, 2, 4, 3, 6])),
    ],
)
def test_layers_that_learn_one_after_another_share_the_epochs_of_their_baseline(row, pairs):
    *layers, last = commands_of(row)
    flags = [dict(flag.split("=", 1) for flag in command[1:]) for command in layers]
    assert sum(float(of_layer["--config.stages.0.epochs"]) for of_layer in flags) == pytest.approx(4, abs=0.02)
    starts = ["TEACHER", *(f"OUT/layer-{layer}/export" for layer in (1, 2, 3))]
    assert [of_layer["--config.init_from"] for of_layer in flags] == starts[:3]
    assert f"--config.init_from={starts[3]}" in last and "--config=configs/finetune/distill.py:soft" in last
    for loss in ("maps", "states"):
        of_loss = [json.loads(of_layer[f"{OBJECTIVE}teacher_losses.{loss}.pairs_of_layers"]) for of_layer in flags]
        assert [sum(of_layer, []) for of_layer in of_loss] == list(pairs)


def test_commands_of_finished_cells_never_change():
    """A cell is run again if its fingerprint changes, and some take hours."""
    assert Cell("pkd", "SST-2", 0).fingerprint == "56f3385ba8a965e0"
    assert Cell("tinybert", "MRPC", 1).fingerprint == "1a829825fa8766b7"
    assert Cell("relations", "SST-2", 2).fingerprint == "506fbfb239a3873e"


def commands_of(row, task="SST-2"):
    return ROWS[row].commands(PLACE._replace(task=task))


def test_pretrained_distillation_shares_the_pretraining_and_ends_with_the_labels():
    first, augment, distilled, tuned = commands_of("pretrained-distilled")
    shared, plain = commands_of("pretrained")
    assert first == shared and augment[0] == "bertjax.augment"
    start = f"--config.init_from={PLACE.out.parent / 'mlm-pretrained-0' / 'export'}"
    assert start in distilled and start in plain and f"--config.init_from={PLACE.out / 'distilled' / 'export'}" in tuned
    assert "--config=configs/finetune/distill.py:tinybert_soft" in distilled
    assert f"--config.tasks.classify.objective.teacher={PLACE.teacher}" in distilled
    assert not [flag for flag in tuned if "teacher=" in flag]


@pytest.mark.parametrize("row, width", [("albert", 384), ("albert-wide", 768)])
def test_students_with_shared_layers_are_pretrained_as_the_others(row, width):
    (theirs, _), (ours, tuned) = commands_of("pretrained"), commands_of(row)
    data = ("--config.data", "--config.stages", "--config.seed")
    assert [flag for flag in ours if flag.startswith(data)] == [flag for flag in theirs if flag.startswith(data)]
    sizes = {"--config.model.preset=albert_base", f"--config.model.width={width}", "--config.init_from="}
    assert sizes <= set(ours) and f"--config.init_from=albert-{width}-pretrained-0/export" in tuned


def test_a_small_student_learns_from_a_teacher_that_continued_on_its_pieces():
    alone, extend, continued, taught, tuned = commands_of("small-96")
    assert [alone] == commands_of("small-96-alone")[:1]
    assert extend[0] == "bertjax.extend" and "--mix=small-96-alone-pretrained-0/export/tokenizer" in extend
    assert (
        f"--config=configs/adapt.py:{Path('mixed-pretrained-0')}" in continued and "--to=mixed-pretrained-0" in extend
    )
    assert "--config=configs/small_vocabulary.py:continued-pretrained-0/export" in taught
    without_teacher = [flag for flag in alone if "objective" not in flag]
    assert without_teacher[3:] == taught[3:] and "--config.init_from=small-96-pretrained-0/export" in tuned


@pytest.mark.parametrize("row", ["bilstm", "bilstm-soft"])
def test_a_bilstm_reads_the_texts_of_a_pair_separately(row):
    siamese = {task: "--config.model.pairs=siamese" in commands_of(row, task)[0] for task in TASKS}
    assert siamese == {"SST-2": False, "MRPC": True, "STS-B": True}
    assert Cell(row, "SST-2", 0).fingerprint == {"bilstm": "19050f8452cb1737", "bilstm-soft": "72a0b9e1b48e62a7"}[row]


def test_mobilebert_alone_has_the_steps_and_rates_of_mobilebert_without_its_teacher():
    (ours, _), (theirs, _) = commands_of("mobilebert"), commands_of("mobilebert-alone")
    assert theirs[3:] == ours[3:] + [
        f"--config.tasks.{task}.objective.{setting}"
        for task in ("transfer", "distillation")
        for setting in ("teacher=", "teacher_losses={}", "own_factor=1.0")
    ]


def test_an_interrupted_cell_does_not_write_again_what_it_has_written(tmp_path):
    ran = []
    cell, place = Cell("narrow-importance", "SST-2", 0), PLACE._replace(out=tmp_path / "cell")
    compression.make(cell, place, lambda *command: ran.append(command[0]))
    (place.out / "cut").mkdir()
    compression.make(cell, place, lambda *command: ran.append(command[0]))
    assert ran == ["bertjax.analyze", "bertjax.compress", "bertjax.train", "bertjax.analyze", "bertjax.train"]


def test_layers_have_the_bits_of_the_analysis(tmp_path, monkeypatch):
    analysis, training = commands_of("q-bert")
    assert f"--out={training[1]}" in analysis and training[0] == "benchmarks.arms.train_layer_bits"
    [plain] = commands_of("three-bits")
    assert [flag for flag in plain if "layer_bits" not in flag][1:] == training[2:]
    numbers = {"parts": {"curvature": {"teacher": {"train.jsonl": {"layer_bits": [4, 2], "examples": 9}}}}}
    (tmp_path / "analysis.json").write_text(json.dumps(numbers))
    received = []
    monkeypatch.setattr(train_layer_bits.train, "main", lambda argv: received.extend(argv) or 0)
    assert train_layer_bits.main([str(tmp_path), "--workdir=w"]) == 0
    assert received == ["--workdir=w", "--config.quantization.layer_bits=[4, 2]"]


def test_the_baseline_of_importance_cuts_the_same_numbers_at_random(tmp_path):
    for row, order in (("narrow-importance", "report/importance.json"), ("narrow", "shuffled.json")):
        [cut] = [command for command in commands_of(row) if command[0] == "bertjax.compress"]
        assert cut[-1] == f"--importance=OUT/{order}" and cut[3:5] == ["--heads=6", "--mlp=768"]
    [command] = [one for one in commands_of("narrow") if one[0] == "benchmarks.arms.shuffled_importance"]
    assert command[2:4] == ["OUT/report/importance.json", "OUT/shuffled.json"]
    encoder = EncoderConfig(layers=2, width=64, heads=4, feedforward=128)
    draw = np.random.default_rng(0)
    numbers = Importance(draw.random((2, 4)), draw.random((2, 128)))
    (tmp_path / "importance.json").write_bytes(numbers.to_json())
    shuffled_importance.shuffle(tmp_path / "importance.json", tmp_path / "shuffled.json", encoder, seed=0)
    before, after = (importance.read(tmp_path / name, encoder) for name in ("importance.json", "shuffled.json"))
    for part in ("heads", "neurons"):
        ours, theirs = getattr(before, part), getattr(after, part)
        assert not np.array_equal(ours, theirs) and np.array_equal(np.sort(ours), np.sort(theirs))


@pytest.mark.parametrize("row", ["vocabulary", "rounded"])
def test_a_row_that_trains_nothing_has_one_seed(row):
    assert [cell.seed for cell in cells(row, "MRPC")] == [0]
    [command] = commands_of(row)
    assert command[:2] == ["bertjax.compress", str(PLACE.teacher)]


@pytest.mark.parametrize("row", ROWS)
def test_every_training_on_numbers_is_a_regression_with_the_losses_of_its_method(row):
    trainings = [
        [flag for flag in command if flag.startswith(("--config=configs/finetune", OBJECTIVE + "kind"))]
        for command in commands_of(row, "STS-B")
        if f"--config.tasks.classify.examples.train={PLACE.data / 'train.jsonl'}" in command
    ]
    assert bool(trainings) == ROWS[row].is_trained
    for recipe, *kind in trainings:
        if "classify.py" in recipe:
            assert kind == [f"{OBJECTIVE}kind=regression"]
        else:  # a kind among the flags would remove the losses
            method, number = recipe.partition(":")[2].split("-")
            assert not kind and number == "regression" and method in distill.METHODS


def test_the_teacher_comes_first_and_finished_cells_are_not_run_again():
    plan = cells(tasks="SST-2")
    assert plan[0] == Cell("teacher", "SST-2", 0) and len(plan) == 3 * len(ROWS) - 4
    done = line("teacher", 0, 0.9)
    assert missing(plan, [done], run=1) == plan[1:]
    assert missing(plan, [done], run=2) == plan
    assert missing(plan, [done | {"commands": "those of yesterday"}], run=1) == plan


def test_a_failed_cell_does_not_stop_the_others(tmp_path, monkeypatch):
    def measure(cell, place, run):
        if cell.row == "soft":
            raise RunFailed("the loss is not finite")
        place.out.mkdir(parents=True)
        return line(cell.row, cell.seed, 0.8)

    monkeypatch.setattr(compression, "SEEDS", (0,))
    for name in ("write_records", "prepare_teacher"):
        monkeypatch.setattr(compression, name, lambda *_: None)
    monkeypatch.setattr(compression, "measure", measure)
    flags = [f"--{name}={tmp_path}" for name in ("model", "data", "corpus")] + [f"--out={tmp_path}/out"]
    results = tmp_path / "lines.jsonl"
    command = [*flags, f"--results={results}", "--rows=teacher,soft,pkd", "--tasks=SST-2"]
    assert exit_code_of(lambda: compression.main(command)) == 1
    assert [row for row in ("teacher", "soft", "pkd") if f'"row": "{row}"' in results.read_text()] == ["teacher", "pkd"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["teacher-SST-2-0"]


def test_all_cells_of_a_task_use_the_same_records(tmp_path):
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    for name, count in (("train", 10), ("dev", 4)):
        with gzip.open(tmp_path / "glue" / "MRPC" / f"{name}.tsv.gz", "wt") as file:
            file.write("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n")
            file.writelines(f"{i % 2}\t{i}\t{i}\ta {i}\tb {i}\n" for i in range(count))
    compression.write_records(TASKS["MRPC"]._replace(limit=6), tmp_path, tmp_path / "records")
    train, heldout = ((tmp_path / "records" / f"{name}.jsonl").read_text() for name in ("train", "heldout"))
    assert train.count("\n") == 6 and train.count('"label": "1"') == 3 and heldout.count("\n") == 4
    assert json.loads(heldout.splitlines()[0]) == {"sentence1": "a 0", "sentence2": "b 0", "label": "0"}


def test_records_of_a_regression_have_numbers_and_their_texts_are_those_of_training(tmp_path):
    (tmp_path / "glue" / "STS-B").mkdir(parents=True)
    for name in ("train", "dev"):
        with gzip.open(tmp_path / "glue" / "STS-B" / f"{name}.tsv.gz", "wt") as file:
            file.write(f"index\tsentence1\tsentence2\tscore\n0\tone {name}\ttwo {name}\t2.500\n")
    compression.write_records(TASKS["STS-B"], tmp_path, tmp_path / "records")
    [record] = map(json.loads, (tmp_path / "records" / "train.jsonl").read_text().splitlines())
    assert record == {"sentence1": "one train", "sentence2": "two train", "label": "2.500"}
    assert (tmp_path / "records" / "texts.txt").read_text() == "one train\ntwo train\n"


def test_the_table_of_a_task_has_its_metric():
    numbers = {"task": "STS-B", "eval": {"spearman": 0.85, "pearson": 0.9}, "baseline": {}}
    [head, _, teacher, *_] = markdown([line("teacher", 0, 0.5) | numbers]).splitlines()
    assert head == "| STS-B | source | run | spearman | of the teacher | without the method |"
    assert "| 85.0 (1) | 100.0% |" in teacher


def test_a_row_is_compared_with_the_teacher_and_the_student_without_the_method_of_its_run():
    lines = [line("teacher", 0, 0.9), line("teacher", 1, 0.7)]
    lines += [line("three-layers", 0, 0.8), line("three-layers", 1, 0.7)]
    lines += [line("pkd", 0, 0.81), line("pkd", 0, 0.855)]
    lines += [line("teacher", 0, 0.5, run=2), line("pkd", 0, 0.4, run=2)]
    assert "| SST-2 (majority 50.0) |" in markdown(lines)
    first, second = [row for row in markdown(lines).splitlines() if "`pkd`" in row]
    assert first.endswith("| 1 | 85.5 (1) | 95.0% | 75.0 [70.0, 80.0] (2) |")
    assert second.endswith("| 2 | 40.0 (1) | 80.0% |  |")


@pytest.mark.parametrize("flag, message", [("--rows=pdk", "--rows has 'pdk'"), ("--tasks=RTE", "--tasks has 'RTE'")])
def test_unknown_names_are_one_line(flag, message, capsys):
    assert exit_code_of(lambda: compression.main(["--dry-run", flag])) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}; choose among ")


def test_a_dry_run_prints_commands_that_a_shell_runs(capsys):
    """Quoted, with those of the encoder first, and finished cells marked."""
    assert (
        exit_code_of(lambda: compression.main(["--dry-run", "--tasks=SST-2", "--rows=theseus-layers", "--out=o"])) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# the encoder of the teacher",
        "# theseus-layers-SST-2-0 (finished)",
    ]
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert [command[2] for command in commands[:2]] == ["bertjax.convert", "bertjax.train"]
    place = Cell("theseus-layers", "SST-2", 0).place(Path("o"), "CORPUS")
    assert commands[2:] == [["python", "-m", *command] for command in ROWS["theseus-layers"].commands(place)]


def test_a_folder_that_is_not_there_is_one_line(capsys):
    assert exit_code_of(lambda: compression.main(["--model=nowhere"])) == 2
    assert capsys.readouterr().err == "error: --model=nowhere does not exist; see --help\n"
