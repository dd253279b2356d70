"""The tables of `benchmarks.family`, from its lines. They state no difference within the spread of the seeds."""

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.family_config import ABLATIONS, NAMES
from benchmarks.family_plan import ABLATION, SEED, SEEDS, Cell, Progress

# A row whose held-out loss is not this far below that of the unigram distribution, in nats, is on its plateau.
PLATEAU = 0.3
_TERMS_IN_A_LINE = 3
_TOKEN_LOSSES = ("mlm_loss", "plm_loss", "clm_loss", "diffusion_loss", "generator_loss")

Line = dict[str, Any]
MEASURES: dict[str, Callable[[Line], float]] = {
    "pairs": lambda line: line["pairs"]["accuracy"],
    "probe": lambda line: max(line["probe"]["layers"]),
    "SST-2": lambda line: line["finetuning"]["accuracy"],
}


def below_unigram(line: Line) -> float:
    """Return how many nats the held-out loss of tokens is below the unigram distribution, the mean over tasks."""
    gains = [
        line["baseline"][f"{name.rpartition('/')[0]}/unigram_loss".lstrip("/")] - value
        for name, value in line["eval"].items()
        if name.rpartition("/")[2] in _TOKEN_LOSSES
    ]
    return statistics.fmean(gains)


def markdown(progress: Progress) -> str:
    """Return the tables of all rows, of ablations and of losses, and the differences; rows without lines are absent."""
    rows = {row: _found(progress, [Cell(row, SEED, seed) for seed in SEEDS]) for row in NAMES}
    rows = {row: lines for row, lines in rows.items() if lines}
    ablations = {row: _found(progress, [Cell(row, ABLATION, SEEDS[0])]) for row in ABLATIONS}
    ablations = {row: lines for row, lines in ablations.items() if lines}
    bert, text = rows.get("bert", []), []
    for title, group in (("row", rows), ("ablation, one seed", ablations)):
        if not group:
            continue
        text += [
            f"| {title} | rate | steps | core s | below unigram | pairs (ties) | SST-2 |",
            "|---|---|---|---|---|---|---|",
        ]
        text += [*(_row(row, lines) for row, lines in group.items()), ""]
        depth = max(len(lines[0]["probe"]["layers"]) for lines in group.values())
        text += [f"| {title}: probe | embeddings | {' | '.join(f'layer {i}' for i in range(1, depth))} |"]
        text += ["|---" * (1 + depth) + "|", *(_probe(row, lines, depth) for row, lines in group.items()), ""]
    if rows:
        text += ["| row | own loss, held out | its terms |", "|---|---|---|"]
        text += [line for row, lines in rows.items() for line in _losses(row, lines)] + [""]
        text += ["| row | beside `bert`, where the seeds do not overlap |", "|---|---|"]
        text += [f"| `{row}` | {_beside(lines, bert)} |" for row, lines in rows.items() if row != "bert"] + [""]
    return "\n".join(text)


def _found(progress: Progress, cells: list[Cell]) -> list[Line]:
    return [line for line in map(progress.find, cells) if line]


def _row(row: str, lines: list[Line]) -> str:
    is_flat = statistics.fmean(map(below_unigram, lines)) < PLATEAU
    seeds = f" ({len(lines)} of {len(SEEDS)})" if row in NAMES and len(lines) < len(SEEDS) else ""
    ties = sum(line["pairs"]["ties"] for line in lines) / sum(line["pairs"]["pairs"] for line in lines)
    cells = [
        f"`{row}`{seeds}" + (", plateau" if is_flat else ""),
        f"{lines[0]['rate']:g}",
        f"{lines[0]['steps']:,}",
        _seconds(lines),
        _spread([below_unigram(line) for line in lines], 2),
        f"{_spread([100 * MEASURES['pairs'](line) for line in lines], 1)} ({ties:.0%})",
        _spread([100 * MEASURES["SST-2"](line) for line in lines], 1),
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(lines: list[Line]) -> str:
    """Return the mean over the cells that were not resumed: others have the seconds of their last start only."""
    whole = [line["training_seconds"] for line in lines if not line.get("resumed")]
    return f"{statistics.fmean(whole):,.0f}" if whole else "-"


def _probe(row: str, lines: list[Line], depth: int) -> str:
    layers = [
        _spread([100 * value for value in layer], 1) for layer in zip(*(line["probe"]["layers"] for line in lines))
    ]
    return f"| `{row}` | {' | '.join([*layers, *[''] * (depth - len(layers))])} |"


def _losses(row: str, lines: list[Line]) -> list[str]:
    """Return a line of the table, or several for the terms of many tasks."""
    names = [name for name in lines[0]["eval"] if name.endswith("_loss")]
    terms = [
        f"{name.removesuffix('_loss')} {statistics.fmean(line['eval'][name] for line in lines):.2f}" for name in names
    ]
    starts = range(0, len(terms), _TERMS_IN_A_LINE)
    first, *more = (", ".join(terms[start : start + _TERMS_IN_A_LINE]) for start in starts)
    own = _spread([line["own_loss"] for line in lines], 2)
    return [f"| `{row}` | {own} | {first} |", *(f"|  |  | {each} |" for each in more)]


def _spread(values: list[float], digits: int) -> str:
    """Return the mean, with the smallest and the largest value if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def _beside(lines: list[Line], bert: list[Line]) -> str:
    """Return in which measures all seeds are above or below all seeds of BERT; nothing of a row with fewer seeds."""
    if min(len(lines), len(bert)) < len(SEEDS):
        return "not all seeds are finished"
    words = []
    for name, measure in MEASURES.items():
        ours, theirs = [measure(line) for line in lines], [measure(line) for line in bert]
        if min(ours) > max(theirs) or max(ours) < min(theirs):
            words.append(f"{name} {100 * (statistics.fmean(ours) - statistics.fmean(theirs)):+.1f}")
    return ", ".join(words) or "within the spread"
