from pathlib import Path

import pytest

from benchmarks.family_config import ABLATIONS, BATCH, RATES, ROWS, SEQ_LEN
from benchmarks.family_plan import Cell, Progress, steps_of_cell
from benchmarks.family_table import markdown
from bertjax.config import config_file

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


def test_a_resumed_cell_has_no_seconds(progress):
    """Its line has those of its last start."""
    choose(progress, "bert", best=RATES[1])
    for seed, seconds in enumerate((200.0, 15.0, 220.0)):
        line(progress, Cell("bert", "seed", seed), training_seconds=seconds, resumed=seed == 1)
    line(progress, Cell("segment-pairs", "ablation", 0), training_seconds=9.0, resumed=True)
    rows = [row for row in markdown(progress).splitlines() if row.startswith(("| `bert` | 0", "| `segment-pairs` | 0"))]
    assert [row.split(" | ")[3] for row in rows] == ["210", "-"]


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
