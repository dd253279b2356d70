"""Figures of results, drawn from the committed lines of `benchmarks/results/`."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import compression as benchmark
from benchmarks.compression_table import Row, rows_of
from benchmarks.resumable import finished
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import Tales

INSIDE = Path(benchmark.__file__).parent / "results" / "inside"
LOWEST, HIGHEST = 84, 102  # percent of the teacher


def compression(tales: Tales) -> Canvas:
    """The share of the teacher's accuracy that each small model of SST-2 keeps, and its student without the method."""
    best: dict[str, Row] = {}
    for row in rows_of(finished(benchmark.RESULTS)):
        # Of two runs the one with more seeds, then the later one.
        if row.task == "SST-2" and (row.name not in best or len(row.scores) >= len(best[row.name].scores)):
            best[row.name] = row
    rows = sorted((row for row in best.values() if row.name != "teacher"), key=lambda row: -(row.of_teacher or 0))
    left, top, height = 168, 62, 15
    canvas = Canvas(
        "SST-2: the share of the teacher's accuracy that each small model keeps. 8 and 4 bits keep 99 to 100 percent, "
        "three of six layers 95 to 98, other shapes 86 to 92. Movement pruning and a wide ALBERT fail.",
        top + height * len(rows) + 24,
    )

    def at(percent: float) -> float:
        return left + (max(percent, LOWEST) - LOWEST) * (420 - left) / (HIGHEST - LOWEST)

    canvas.text(14, 24, "accuracy on SST-2, % of the teacher", "head")
    canvas.dot(left, 40, "blue-full")
    canvas.text(left + 9, 44, "this model", "soft")
    canvas.dot(left + 92, 40, "gray")
    canvas.text(left + 101, 44, "without its method", "soft")
    for percent in range(LOWEST + 1, HIGHEST, 5):
        x = at(percent)
        canvas.line((x, top - 6), (x, top + height * len(rows)), style="grid")
        canvas.text(x, top + height * len(rows) + 16, f"{percent}%", "soft", "middle")
    for index, row in enumerate(rows):
        y = top + height * index + 6
        canvas.text(14, y + 4, row.name, "code")
        kept = 100 * (row.of_teacher or 0)
        ends = [at(kept)]
        if row.without:
            ends.append(at(kept * statistics.fmean(row.without) / statistics.fmean(row.scores)))
            canvas.line((ends[0], y), (ends[1], y))
            canvas.dot(ends[1], y, "gray")
        canvas.dot(ends[0], y, "red-full" if kept < LOWEST else "blue-full")
        if kept < LOWEST:
            canvas.text(max(ends) + 9, y + 4, f"{kept:.0f}%, fails", "soft")
    return canvas


class Series(NamedTuple):
    """A line of a chart: for each place of its axis one value, or one for each seed, in percent."""

    name: str
    color: str
    values: Sequence[Sequence[float]]


def _chart(canvas: Canvas, places: Sequence[str], axis: str, series: Sequence[Series], highest: int) -> None:
    """Draw lines over evenly spaced places, with the range of the seeds as a bar, and name each at its end."""
    left, right, top, bottom = 50, 300, 46, 270

    def y_of(value: float) -> float:
        return bottom - value * (bottom - top) / highest

    for percent in range(0, highest + 1, 10):
        canvas.line((left, y_of(percent)), (right, y_of(percent)), style="grid" if percent else "")
        canvas.text(left - 6, y_of(percent) + 4, f"{percent}%", "soft", "end")
    xs = [left + 10 + index * (right - left - 20) / (len(places) - 1) for index in range(len(places))]
    for x, place in zip(xs, places):
        canvas.text(x, bottom + 18, place, "soft", "middle")
    canvas.text((left + right) / 2, bottom + 36, axis, "soft", "middle")
    for name, color, values in series:
        means = [y_of(statistics.fmean(each)) for each in values]
        canvas.line(*zip(xs, means), style=f"thick {color}-line")
        for x, mean, each in zip(xs, means, values):
            if len(each) > 1:
                canvas.line((x, y_of(min(each))), (x, y_of(max(each))), style=f"{color}-line")
            canvas.dot(x, mean, f"{color}-full")
        for line, words in enumerate(name.split("\n")):
            canvas.text(right + 6, means[-1] + 4 + 15 * line, words, "soft")


def inside(tales: Tales) -> Canvas:
    """Attention of MiniLM to [CLS] before and after fine-tuning."""
    parts = json.loads((INSIDE / "minilm_sst2.json").read_text())["parts"]["targets"]
    canvas = Canvas(
        "Attention to [CLS] in MiniLM by layer, on SST-2: fine-tuning takes it from 35 to 15 percent in layer 6, and "
        "changes nothing in layer 1.",
        320,
    )
    canvas.text(14, 26, "attention to [CLS], SST-2", "head")
    series = []
    for name, model, color in (("before\nfine-tuning", "minilm", "gray"), ("after", "SST-2", "blue")):
        shares = parts[model]["glue:SST-2"]["target_by_layer"]["[CLS]"]
        series.append(Series(name, color, [[100 * share] for share in shares]))
    _chart(canvas, [str(layer) for layer in range(1, 7)], "layer", series, highest=60)
    return canvas


def inside_training(tales: Tales) -> Canvas:
    """What three seeds of a tiny BERT do over their steps."""
    steps = (0, 100, 300, 1000, 2000, 4000)
    seeds = [json.loads((INSIDE / f"tiny_seed{seed}.json").read_text())["parts"] for seed in range(3)]

    def values(part: str, pick) -> list[list[float]]:
        return [
            [100 * pick(parts[part][f"tiny-{seed}@{step}"]["corpus"]) for seed, parts in enumerate(seeds)]
            for step in steps
        ]

    neighbors = values("targets", lambda x: x["target_by_layer"]["previous"][0] + x["target_by_layer"]["next"][0])
    canvas = Canvas(
        "Over the steps of a tiny BERT: attention to neighbors in layer 1 is 9 percent at step 300 and 49 at step "
        "4,000, guessed tokens rise from 0 to 35 percent, attention to [SEP] in layer 3 to 18 percent.",
        320,
    )
    canvas.text(14, 26, "a tiny BERT, mean and range of 3 seeds", "head")
    series = (
        Series("layer 1 attends\nto neighbors", "blue", neighbors),
        Series("masked tokens\nguessed", "green", values("layers", lambda x: x["lens"]["accuracy"][-1])),
        Series("layer 3 attends\nto [SEP]", "orange", values("targets", lambda x: x["target_by_layer"]["[SEP]"][2])),
    )
    _chart(canvas, [f"{step:,}" for step in steps], "step", series, highest=60)
    return canvas


def inside_korean(tales: Tales) -> Canvas:
    """To what the layers of a Korean ALBERT attend."""
    parts = json.loads((INSIDE / "albert_ko.json").read_text())["parts"]
    targets = parts["targets"]["albert_ko"]["embedded:ko"]["target_by_layer"]
    canvas = Canvas(
        "A Korean ALBERT attends to [CLS] in layers 2 and 3, to [SEP] from layer 4 on, and to punctuation in the last "
        "two layers.",
        320,
    )
    canvas.text(14, 26, "share of attention, by layer", "head")
    series = [
        Series(name, color, [[100 * value] for value in targets[name]])
        for name, color in (("punctuation", "blue"), ("[SEP]", "orange"), ("[CLS]", "green"))
    ]
    _chart(canvas, [str(layer) for layer in range(1, 13)], "layer", series, highest=40)
    return canvas
