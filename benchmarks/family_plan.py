"""The plan of the family benchmark: its cells, the steps that make FLOPs equal, and the lines of finished cells."""

import dataclasses
import functools
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import family_config, family_finetuning, family_probe, resumable
from benchmarks.family_config import ABLATIONS, NAMES, RATES, ROWS, STUDENT, TEACHER
from bertjax.config.config import Config, Task, from_dict
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.training import stage_flops
from bertjax.training.loss import total_loss
from bertjax.training.setup import make_setups
from bertjax.training.shapes import batch_shapes

SEEDS = (0, 1, 2)
# The steps that choose a learning rate are those of a run of a third of the FLOPs.
RATE_SHARE = 1 / 3
PAIRS = 500
KINDS = RATE, SEED, ABLATION = ("rate", "seed", "ablation")
# Before any cell has been measured: FLOPs/s of training on one core of an AMD EPYC, and seconds of all else in a cell.
FLOPS_PER_SECOND, OTHER_SECONDS = 4.5e10, {RATE: 40.0, SEED: 120.0, ABLATION: 120.0}


class Cell(NamedTuple):
    """One training run and what is measured of it.

    Attributes:
      row: its name in `benchmarks.family_config`.
      kind: `rate` (a third of the FLOPs, chooses the learning rate), `seed` or `ablation`.
      seed: seed of the run.
      rate: the learning rate; None for the one that the cells `rate` of its row choose.
    """

    row: str
    kind: str
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return f"{self.row}-{self.kind}-{self.seed}{rate}"


def cells(ablations: bool = False, names: str = "") -> list[Cell]:
    """Return the cells of a table in an order in which each finds its inputs: all rows have seed 0 before seed 1.

    Args:
      names: the rows whose cells are returned, separated by commas; empty for all.

    Raises:
      UserError: the table has no such row.
    """
    if ablations:
        plan = [Cell(row, ABLATION, SEEDS[0]) for row in ABLATIONS]
    else:
        rows = [TEACHER, *(row for row in NAMES if row != TEACHER)]
        plan = []
        for row in rows:
            rates = RATES if _rate_row(row) == row else ()
            plan += [*(Cell(row, RATE, SEEDS[0], rate) for rate in rates), Cell(row, SEED, SEEDS[0])]
        plan += [Cell(row, SEED, seed) for seed in SEEDS[1:] for row in rows]
    chosen = resumable.chosen(names, dict.fromkeys(cell.row for cell in plan), "--rows")
    return [cell for cell in plan if cell.row in chosen]


def _rate_row(row: str) -> str:
    """Return the row whose cells `rate` choose the learning rate of a row; the student is not in the tables of rows."""
    return row if row == STUDENT else (ROWS | ABLATIONS)[row].rate_of or row


def flops_of(row: str, steps: int) -> float:
    """Return the FLOPs of a run of a row, rows of padding included, by its shapes: nothing is compiled or run."""
    return sum(stage.steps * cost for stage, cost in zip(_config(row, steps).stages, _step_flops(row)))


@functools.cache
def steps_of(row: str, share: float = 1.0) -> int:
    """Return the steps whose FLOPs are nearest to a share of those of `mlm` at `family_config.STEPS`."""
    budget = share * flops_of(TEACHER, family_config.STEPS)
    steps = max(1, round(share * family_config.STEPS))
    for _ in range(4):
        steps = max(1, round(steps * budget / flops_of(row, steps)))
    return min((steps - 1, steps, steps + 1), key=lambda count: abs(flops_of(row, max(count, 1)) - budget))


@functools.cache
def _step_flops(row: str) -> tuple[float, ...]:
    config = _config(row, 100)
    setups = make_setups(config, config.expected_vocab_size)
    return tuple(stage_flops.per_step(setup, stage) for stage, setup in enumerate(setups))


@functools.lru_cache(maxsize=256)
def _config(row: str, steps: int) -> Config:
    if row != STUDENT:
        return from_dict(family_config.get_config(f"{row},{steps}").to_dict())
    # The student of a teacher that need not have been trained: only shapes matter.
    settings = family_config.get_config(f"{STUDENT},{steps}").to_dict()
    layers = settings["model"]["layers"]
    for name in ("init_from", "init_layers"):
        settings.pop(name)
    settings["model"] = family_config.ENCODER | {"layers": layers, "embeddings": {"segments": 0}}
    config = from_dict(settings)
    whole = _config(TEACHER, steps).encoder(config.expected_vocab_size, "cpu")
    head = jax.eval_shape(lambda key: _params(whole, key), jax.random.key(0))
    (name, chosen), *_ = config.tasks.items()
    teacher = Teacher(whole, head, "a tokenizer", Path(TEACHER))
    return dataclasses.replace(
        config, tasks={name: dataclasses.replace(chosen, objective=chosen.objective.bind_teacher(teacher))}
    )


def _params(encoder, key: jax.Array) -> dict:
    objective = MaskedLM()
    return objective.init(objective.model(encoder), key, batch_shapes(Task(objective), encoder.vocab_size, 32))


def own_loss(row: str, metrics: dict[str, float]) -> float:
    """Return the held-out loss that a row minimizes: its terms with their weights, the mean over its tasks."""
    objectives = {name: task.objective for name, task in _config(row, family_config.STEPS).tasks.items()}
    losses = []
    for name, objective in objectives.items():
        prefix = f"{name}/" if len(objectives) > 1 else ""
        terms = {
            metric.removeprefix(prefix).removesuffix("_loss"): value
            for metric, value in metrics.items()
            if metric.startswith(prefix) and metric.endswith("_loss")
        }
        losses.append(float(total_loss(objective, terms, step=0)))
    return statistics.fmean(losses)


@dataclasses.dataclass
class Progress:
    """The finished cells of a file of lines, as far as they have the settings of today.

    Args:
      path: the file, one JSON object a line; its last line may be incomplete.
    """

    path: Path
    lines: list[dict[str, Any]] = dataclasses.field(init=False)

    def __post_init__(self):
        self.lines = resumable.finished(self.path)

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the file."""
        self.lines.append(line)
        resumable.append(self.path, line)

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """Return the line of a cell with the settings that it has today."""
        rate = self.rate_of(cell)
        if rate is None:
            return None
        wanted = {"row": cell.row, "kind": cell.kind, "seed": cell.seed, "config": self.fingerprint(cell)}
        same = [line for line in self.lines if all(line[name] == value for name, value in wanted.items())]
        return same[-1] if same else None

    def rate_of(self, cell: Cell) -> float | None:
        """Return the learning rate of a cell; None until all cells that choose it are finished."""
        if cell.rate is not None:
            return cell.rate
        lines = [self.find(Cell(_rate_row(cell.row), RATE, 0, rate)) for rate in RATES]
        if None in lines:
            return None
        return min(lines, key=lambda line: line["own_loss"])["rate"]

    def fingerprint(self, cell: Cell) -> str:
        """Return a hash of the settings of a cell: those of its training, of its teacher and of what is measured."""
        teacher = self.fingerprint(Cell(TEACHER, SEED, 0)) if cell.row == STUDENT else ""
        settings = {"train": variant_settings(cell, self.rate_of(cell), teacher), "seed": cell.seed}
        if cell.kind != RATE:
            probing = family_probe.SETTINGS, family_finetuning.get_config(",").to_dict()
            settings |= {"pairs": PAIRS, "probe": probing[0], "finetuning": probing[1]}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def seconds_of(self, cell: Cell) -> float:
        """Return the CPU seconds of a cell: measured, or estimated from its row, from all rows, or from nothing."""
        if line := self.find(cell):
            return line["core_seconds"]
        # The line of a resumed cell lacks the seconds of earlier starts.
        whole = [line for line in self.lines if not line.get("resumed")]
        of_row = [line for line in whole if line["row"] == cell.row] or whole
        speeds = [line["executed_flops"] / line["training_seconds"] for line in of_row]
        speed = statistics.median(speeds) if speeds else None
        alike = [line["core_seconds"] - line["training_seconds"] for line in self.lines if line["kind"] == cell.kind]
        other = statistics.median(alike) if alike else OTHER_SECONDS[cell.kind]
        return flops_of(cell.row, steps_of_cell(cell)) / (speed or FLOPS_PER_SECOND) + other


def steps_of_cell(cell: Cell) -> int:
    """Return the steps of a cell."""
    return steps_of(cell.row, RATE_SHARE if cell.kind == RATE else 1.0)


def variant_settings(cell: Cell, rate: float | None, teacher: str) -> dict[str, Any]:
    """Return the configuration of a cell's training as plain data."""
    rate_text = "" if rate is None else f"{rate:g}"
    return family_config.get_config(f"{cell.row},{steps_of_cell(cell)},{rate_text},{teacher}").to_dict()
