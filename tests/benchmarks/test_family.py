import gzip
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import family
from benchmarks.family_config import ABLATIONS, BATCH, NAMES, RATES, ROWS, SEQ_LEN, STEPS
from benchmarks.family_plan import RATE_SHARE, Cell, Progress, cells, flops_of, own_loss, steps_of, steps_of_cell
from benchmarks.family_probe import accuracy, probe
from benchmarks.family_table import below_unigram, markdown
from bertjax import config_file
from bertjax.config import from_dict
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.errors import RunFailed, UserError
from bertjax.export import Export
from bertjax.training import stage_flops
from bertjax.training.program import Program

CONFIG = Path(__file__).parents[2] / "benchmarks" / "family_config.py"


@pytest.fixture
def progress(tmp_path):
    return Progress(tmp_path / "results" / "family.jsonl")


def line(progress: Progress, cell: Cell, loss: float = 5.0, pairs: float = 0.7, **more) -> dict:
    """A made-up line of a cell, appended to the file."""
    made = cell._asdict() | {
        "rate": progress.rate_of(cell),
        "config": progress.fingerprint(cell),
        "steps": steps_of_cell(cell),
        "executed_flops": 2e12,
        "training_seconds": 100.0,
        "core_seconds": 150.0,
        "eval": {"mlm_loss": loss},
        "baseline": {"unigram_loss": 6.4},
        "own_loss": loss,
        "pairs": {"accuracy": pairs, "ties": 5, "pairs": 100},
        "probe": {"layers": [0.5, 0.6, 0.7], "majority": 0.2},
        "finetuning": {"accuracy": 0.72, "majority": 0.51},
    }
    progress.append(made | more)
    return made | more


def choose(progress: Progress, row: str, best: float) -> None:
    """Finish the cells that choose the learning rate of a row."""
    for rate in RATES:
        line(progress, Cell(row, "rate", 0, rate), loss=4.0 if rate == best else 5.0)


@pytest.mark.parametrize("row", [*ROWS, *ABLATIONS])
def test_a_row_trains_for_the_given_steps_at_the_given_rate(row):
    config = config_file.load(f"{CONFIG}:{row},31,3e-3")
    assert sum(stage.steps for stage in config.stages) == 31
    assert {(stage.seq_len, stage.batch) for stage in config.stages} == {(SEQ_LEN, BATCH)}
    assert config.optimizer.learning_rate == 3e-3
    assert config.model.layers == 2 and config.data == config_file.load(f"{CONFIG}:mlm,31").data


@pytest.mark.parametrize("share", [1.0, RATE_SHARE])
def test_all_rows_have_equal_flops_within_a_step(share):
    budget = share * flops_of("mlm", STEPS)
    for row in (*NAMES, *ABLATIONS):
        steps = steps_of(row, share)
        a_step = flops_of(row, steps + 1) - flops_of(row, steps)
        assert abs(flops_of(row, steps) - budget) <= max(a_step, budget / steps), row
    assert steps_of("mlm") == STEPS and steps_of("electra") < STEPS < steps_of("stacking")


@pytest.mark.parametrize("row", ["mlm", "electra", "stacking"])
def test_the_forecast_of_flops_is_what_the_run_counts(row):
    config = config_file.load(f"{CONFIG}:{row},100")
    program, counted = Program(config, config.expected_vocab_size), 0.0
    for index, stage in enumerate(config.stages):
        task = program.at(index).tasks[config.task_name]
        counted += stage_flops.of_stage(task, index).executed(task.abstract_batches(stage, stage.steps))
    assert flops_of(row, 100) == pytest.approx(counted, rel=1e-12)


def test_every_row_has_three_rates_and_three_seeds_and_finds_its_inputs():
    plan = cells()
    assert len(plan) == len(set(plan)) == len(NAMES) * 6 == 84
    for cell in plan:
        before = plan[: plan.index(cell)]
        if cell.kind == "seed":
            assert {Cell(cell.row, "rate", 0, rate) for rate in RATES} <= set(before)
        if cell.row == "distilbert":
            assert Cell("mlm", "seed", 0) in before
    assert {cell.row for cell in cells(ablations=True)} == set(ABLATIONS)
    assert {row.rate_of for row in ABLATIONS.values()} <= set(ROWS)


def test_the_rate_is_that_of_the_lowest_own_loss(progress):
    assert progress.rate_of(Cell("bert", "seed", 1)) is None
    choose(progress, "bert", best=RATES[2])
    assert progress.rate_of(Cell("bert", "seed", 1)) == RATES[2]
    assert progress.rate_of(Cell("segment-pairs", "ablation", 0)) == RATES[2]
    assert Progress(progress.path).rate_of(Cell("bert", "seed", 1)) == RATES[2]


def test_own_losses_have_the_coefficients_of_the_objective_and_are_means_over_tasks():
    assert own_loss("electra", {"generator_loss": 3.0, "rtd_loss": 0.1, "rtd_accuracy": 9.0}) == pytest.approx(8.0)
    tasks = {f"{task}/{term}_loss": 2.0 for task in ("tokens", "phrases", "entities") for term in ("mlm", "nsp")}
    assert own_loss("ernie", tasks | {"tokens/mlm_loss": 5.0}) == pytest.approx(5.0)


@pytest.mark.parametrize("row", [*NAMES, *ABLATIONS])
def test_every_row_has_an_own_loss(row):
    assert own_loss(row, {}) == 0.0


def test_only_missing_cells_run_and_an_incomplete_line_is_dropped(progress, monkeypatch, tmp_path):
    choose(progress, "mlm", best=RATES[0])
    done = line(progress, Cell("mlm", "seed", 0))
    line(progress, Cell("mlm", "seed", 1), config="other settings")
    with open(progress.path, "a") as file:
        file.write('{"row": "cut o')
    resumed, ran = Progress(progress.path), []

    def measure(cell, progress, out, data):
        ran.append(cell)
        (out / cell.name).mkdir()
        return done | cell._asdict() | {"rate": RATES[0], "config": progress.fingerprint(cell)}

    monkeypatch.setattr(family, "measure", measure)
    plan = [cell for cell in cells() if cell.row == "mlm"]
    family.run_cells(resumed, plan, tmp_path, tmp_path, budget_hours=0)
    assert ran == [Cell("mlm", "seed", 1), Cell("mlm", "seed", 2)]
    family.run_cells(Progress(progress.path), plan, tmp_path, tmp_path, budget_hours=0)
    assert len(ran) == 2 and len(list(map(json.loads, progress.path.read_text().splitlines()))) == 7
    assert not any((tmp_path / cell.name).exists() for cell in ran)


def test_the_budget_counts_the_cells_of_all_calls(progress, monkeypatch, tmp_path, capsys):
    choose(progress, "mlm", best=RATES[0])
    monkeypatch.setattr(family, "measure", lambda *_: pytest.fail("a cell ran"))
    family.run_cells(progress, cells(), tmp_path, tmp_path, budget_hours=550 / 3600)
    assert "mlm-seed-0 would exceed --budget-hours" in capsys.readouterr().out


def test_a_cell_that_fails_does_not_stop_the_others(progress, monkeypatch, tmp_path):
    plan, ran = [Cell("bert", "rate", 0, RATES[0]), Cell("bert", "seed", 0), Cell("mlm", "rate", 0, RATES[0])], []

    def measure(cell, progress, out, data):
        if cell.row == "bert":
            raise RunFailed("the loss is not finite")
        ran.append(cell)
        (out / cell.name).mkdir()
        return cell._asdict() | {"config": progress.fingerprint(cell), "core_seconds": 1.0}

    monkeypatch.setattr(family, "measure", measure)
    with pytest.raises(RunFailed, match="2 cells failed: bert-rate-0-0.001, bert-seed-0 .its learning rate"):
        family.run_cells(progress, plan, tmp_path, tmp_path, budget_hours=0)
    assert ran == plan[2:]


def test_rows_are_chosen_by_name():
    assert cells(names="bert,mlm") == [cell for cell in cells() if cell.row in ("bert", "mlm")]
    with pytest.raises(UserError, match="--rows has 'brt'; choose among mlm, bert, "):
        cells(names="brt")


def test_ablations_wait_for_the_rates_of_their_rows(progress, tmp_path):
    with pytest.raises(UserError, match="without --ablations first"):
        family.run_cells(progress, cells(ablations=True), tmp_path, tmp_path, budget_hours=0)


def test_the_plan_has_steps_flops_minutes_and_what_is_finished(progress):
    choose(progress, "mlm", best=RATES[0])
    text = family.plan_lines(progress, [cell for cell in cells() if cell.row == "mlm"])
    assert [line.endswith("finished") for line in text] == [False, True, True, True, False, False, False, False]
    assert f"{STEPS:,}" in text[4] and f"{flops_of('mlm', STEPS):.2e}" in text[4]


def test_the_tables_mark_the_plateau_and_state_nothing_within_the_spread(progress):
    for row, losses, pairs in (
        ("bert", (5.0, 5.1, 5.2), (0.70, 0.72, 0.74)),
        ("mlm", (5.0, 5.1, 5.2), (0.71, 0.73, 0.75)),
        ("electra", (6.2, 6.3, 6.4), (0.50, 0.52, 0.54)),
        ("roberta", (4.0,), (0.9,)),
    ):
        choose(progress, row, best=RATES[1])
        for seed, (loss, share) in enumerate(zip(losses, pairs)):
            line(progress, Cell(row, "seed", seed), loss=loss, pairs=share)
    line(progress, Cell("segment-pairs", "ablation", 0))
    text = markdown(progress)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert "1.30 [1.20, 1.40] | 72.0 [70.0, 74.0] (5%)" in rows[0] and "plateau" not in rows[0]
    assert rows[2].startswith("| `roberta` (1 of 3) |")
    assert rows[3].startswith("| `electra`, plateau | 0.002 |")
    assert "| `bert` | 50.0 [50.0, 50.0] | 60.0 [60.0, 60.0] | 70.0 [70.0, 70.0] |" in text
    assert "ablation, one seed" in text and "| `segment-pairs` | 0.002 |" in text
    assert "| `mlm` | within the spread |" in text
    assert "| `electra` | pairs -20.0 |" in text
    assert "| `roberta` | not all seeds are finished |" in text


def test_the_probe_finds_linear_classes_and_nothing_in_noise():
    draw = np.random.default_rng(0)
    labels, answers = (draw.integers(0, 3, words) for words in (600, 300))
    centers = 5.0 * draw.normal(size=(3, 8))
    linear, noise = (
        [center + draw.normal(size=(len(center), 8)) for center in pair]
        for pair in ((centers[labels], centers[answers]), (np.zeros((600, 8)), np.zeros((300, 8))))
    )
    assert accuracy(*linear, labels, answers, 3) > 0.95
    assert accuracy(*noise, labels, answers, 3) < 0.45


def test_words_with_a_tag_of_their_own_are_told_apart_in_every_layer(tmp_path):
    """The export is random, so a word is all that its vectors hold."""
    words, draw = {"abc": "NOUN", "fed": "VERB", "good": "ADJ", "jade": "NOUN"}, random.Random(0)
    tokens = tokenizer.train([" ".join(words)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=32))
    sizes = {"layers": 2, "width": 32, "heads": 2, "feedforward": 64, "max_positions": 16}
    program = Program(from_dict({"model": sizes, "stages": [{"seq_len": 16}]}), tokens.vocab_size)
    params = jax.tree.map(np.asarray, program.init_state()["params"])
    model = Export({}, program.encoder, params, tokens, {})
    (tmp_path / "ud").mkdir()
    for split in ("train", "dev"):
        sentences = [draw.choices(list(words), k=draw.randint(2, 20)) for _ in range(40)]  # some exceed a row
        lines = [
            "".join(f"{n}\t{word}\t_\t{words[word]}\t_\t_\t_\t_\t_\t_\n" for n, word in enumerate(part, 1))
            for part in sentences
        ]
        with gzip.open(tmp_path / "ud" / f"en_ewt.{split}.conllu.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    result = probe(model, str(tmp_path))
    assert len(result["layers"]) == 3 and min(result["layers"]) > 0.9
    assert 0.3 < result["majority"] < 0.7


@pytest.mark.parametrize("loss", ["mlm_loss", "plm_loss", "clm_loss", "generator_loss"])
def test_the_loss_of_tokens_has_many_names(loss):
    assert below_unigram({"eval": {loss: 5.0, "rtd_loss": 0.1}, "baseline": {"unigram_loss": 6.5}}) == 1.5


def test_several_tasks_are_averaged_below_the_unigram_distribution():
    made = {
        "eval": {"a/mlm_loss": 4.0, "b/mlm_loss": 5.0, "b/nsp_loss": 0.1},
        "baseline": {"a/unigram_loss": 6.0, "b/unigram_loss": 6.5, "b/nsp_majority": 0.5},
    }
    assert below_unigram(made) == pytest.approx(1.75)
