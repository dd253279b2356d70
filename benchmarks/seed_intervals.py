"""How often the intervals and p-values of `bertjax compare` are right, by simulation at the noise of `tiny.py:adamw`.

    python -m benchmarks.seed_intervals --out=benchmarks/results/seed_intervals.jsonl
    python -m benchmarks.seed_intervals --out=benchmarks/results/seed_intervals.jsonl --markdown

Two arms of one method differ by nothing but the noise of seeds. In 5% of the comparisons p should be below 0.05, and
95% intervals should hold the true value in 95%. Each trial draws the losses of both arms, and their scores by batch of
held-out rows, and gives them to the function that the command calls. 20 trials are also written as workdirs and read by
the command itself, which must print the same numbers.
"""

import argparse
import contextlib
import io
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.cli import compare
from bertjax.comparison.numbers import Spread, effect_of
from bertjax.config.config import from_dict
from bertjax.data import tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.training.evaluation import Evaluation
from bertjax.training.results.report import summary_of
from bertjax.training.results.scores import Scores, scores_of, write_scores
from bertjax.training.run.metrics import Totals, goodput_of
from bertjax.training.run.record import RunRecord, write_record
from bertjax.training.run.workdir import Workdir, append_jsonl, write_json

TINY = Path(__file__).parent / "results" / "tiny.jsonl"
METRIC, STEPS = "mlm_loss", 4000
SEEDS, TRIALS, THROUGH_COMMAND = (2, 3, 5, 10), 2000, 20
# Held-out batches of `configs/tiny.py:adamw`, and about how many tokens each of them predicts.
UNITS, TOKENS = 22, 240
# Deviations of the loss of a batch, assumed: what all runs share (losses of tokens scatter by about 3 nats), and what
# one run does better on one batch than on another (two runs differ by about 1 nat at a token).
BATCH_NOISE, OWN_BATCH_NOISE = 0.19, 0.05
# Part of the variance that runs of one seed share: they read the same rows in the same order. Assumed.
SHARED = {"the same seeds": 0.5, "other seeds": 0.0}


class Noise(NamedTuple):
    """The mean of the final loss over seeds, and its deviation."""

    mean: float
    deviation: float


class Trial(NamedTuple):
    """Two arms of one method, with the values that intervals should hold.

    Attributes:
      first, second: what the runs of the arms scored.
      mean: of the first arm over all seeds, on these batches; for one run, of this run over all batches.
      difference: the same of the second arm minus the first.
    """

    first: Spread
    second: Spread
    mean: float
    difference: float


def measured_noise(path: Path = TINY) -> Noise:
    """Return the noise of the last held-out losses of `configs/tiny.py:adamw`, three seeds."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [
        line[f"eval/heldout/{METRIC}"] for line in lines if (line["recipe"], line["step"]) == ("tiny.py:adamw", STEPS)
    ]
    return Noise(statistics.fmean(losses), statistics.stdev(losses))


def draw(rng: np.random.Generator, noise: Noise, sizes: tuple[int, int], shared: float) -> Trial:
    """Return two arms without a difference.

    Args:
      rng: generator of the draws.
      noise: of the seeds.
      sizes: numbers of runs.
      shared: part of the variance that runs of one index share.
    """
    common = math.sqrt(shared) * rng.normal(size=max(sizes))
    batches = BATCH_NOISE * rng.normal(size=UNITS)
    of_runs = [noise.deviation * (common[:size] + math.sqrt(1 - shared) * rng.normal(size=size)) for size in sizes]
    sides = []
    for of_arm in of_runs:
        losses = noise.mean + of_arm[:, None] + batches + OWN_BATCH_NOISE * rng.normal(size=(len(of_arm), UNITS))
        scores = tuple(scores_of(range(UNITS), [(TOKENS * loss, TOKENS) for loss in of_run]) for of_run in losses)
        sides.append(Spread(tuple(losses.mean(axis=1).tolist()), scores))
    if sizes == (1, 1):  # the interval is over batches
        return Trial(*sides, float(noise.mean + of_runs[0][0]), float(of_runs[1][0] - of_runs[0][0]))
    return Trial(*sides, float(noise.mean + batches.mean()), 0.0)


def simulate(noise: Noise, trials: int = TRIALS) -> Iterator[dict[str, Any]]:
    """Yield a line for each way in which the seeds of two arms are related, and each number of seeds."""
    for design, shared in SHARED.items():
        for sizes in [(seeds, seeds) for seeds in SEEDS] + [(3, 5)] * (not shared):
            yield {"design": design, "seeds": sizes} | shares(noise, sizes, shared, trials)
    yield {"design": "one run each", "seeds": (1, 1)} | shares(noise, (1, 1), 0.0, trials)


def shares(noise: Noise, sizes: tuple[int, int], shared: float, trials: int) -> dict[str, Any]:
    """Return how often p is below 0.05, and how often intervals hold the value that they should."""
    rng, below, zero, difference, mean = np.random.default_rng(0), [], [], [], []
    for _ in range(trials):
        trial = draw(rng, noise, sizes, shared)
        effect = effect_of(trial.first, trial.second, sizes[0] if shared else 0)
        below.append(None if effect.p is None else effect.p < 0.05)
        zero.append(effect.low <= 0.0 <= effect.high)
        difference.append(effect.low <= trial.difference <= effect.high)
        low, high = trial.first.interval
        mean.append(low <= trial.mean <= high)
    return {
        "trials": trials,
        "deviation": noise.deviation,
        "p_below_0.05": None if None in below else statistics.fmean(below),
        "zero_outside": 1 - statistics.fmean(zero),
        "difference_held": statistics.fmean(difference),
        "mean_held": statistics.fmean(mean),
    }


def through_command(noise: Noise, trials: int = THROUGH_COMMAND) -> Iterator[dict[str, Any]]:
    """Yield a line for each trial that is written as workdirs and read by `python -m bertjax compare`.

    Raises:
      AssertionError: the command prints other numbers than the function returns.
    """
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = tokenizer.train(["a few words"], TokenizerConfig(kind="char", vocab_size=400))
        for index in range(trials):
            design = list(SHARED)[index % 2]
            seeds = SEEDS[index // 2 % len(SEEDS)]
            trial = draw(rng, noise, (seeds, seeds), SHARED[design])
            root = Path(folder) / str(index)
            for arm, spread, first_seed in (("a", trial.first, 0), ("b", trial.second, 0 if SHARED[design] else seeds)):
                for seed, (loss, scores) in enumerate(zip(spread.values, spread.scores), first_seed):
                    _write_run(root / arm / f"seed={seed}", seed, loss, scores, vocabulary)
            printed = _compare(root)
            expected = effect_of(trial.first, trial.second, seeds if SHARED[design] else 0)
            effect, numbers = printed["effects"]["b"][METRIC], printed["numbers"]["a"]["heldout"][METRIC]
            for name in ("value", "low", "high", "p"):
                assert math.isclose(effect[name], getattr(expected, name), rel_tol=1e-9), (index, name)
            assert np.allclose(numbers["interval"], trial.first.interval, rtol=1e-9), index
            yield {"design": design, "seeds": (seeds, seeds), "trial": index, "p": effect["p"]}


def _write_run(path: Path, seed: int, loss: float, scores: Scores, vocabulary: Tokenizer) -> None:
    """Write a workdir as a finished run leaves it."""
    config = from_dict(
        {"seed": seed, "optimizer": {"warmup_steps": 200}, "stages": [{"steps": STEPS, "seq_len": 32, "batch": 48}]}
    )
    path.mkdir(parents=True)
    files, totals = Workdir.at(path), Totals(tokens=1e6, seconds=100.0)
    write_record(files, RunRecord(config, config.identity("0" * 64), vocabulary.vocab_size), vocabulary)
    append_jsonl(files.metrics, {"step": STEPS, "tokens": 1e6, "seconds": 100.0, f"eval/heldout/{METRIC}": loss})
    evaluation = Evaluation({METRIC: loss}, {}, [], [], loss, {METRIC: scores})
    figures = summary_of(evaluation, totals, STEPS, goodput_of(totals, wall_seconds=100.0), parameters=1)
    write_json(files.summary, {"finished": True, **figures})
    write_scores(files.scores, evaluation.of_all("scores"))


def _compare(root: Path) -> dict[str, Any]:
    """Return what the command prints about the folders `a` and `b`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        compare.main([str(root / "a"), str(root / "b"), "--json", f"--out={root / 'compare.svg'}"])
    return json.loads(printed.getvalue())


def markdown(lines: Iterable[dict[str, Any]]) -> str:
    """Return the table of the guide."""
    titles = ("runs on each side", "p < 0.05", "interval of the difference right", "interval of the mean right")
    rows = [f"| {' | '.join(titles)} |", "|---|---|---|---|"]
    for line in lines:
        if "trials" in line:
            first, second = line["seeds"]
            count = str(first) if first == second else f"{first} and {second}"
            runs = line["design"] if first == second == 1 else f"{count}, {line['design']}"
            p = "no p" if line["p_below_0.05"] is None else f"{line['p_below_0.05']:.1%}"
            rows.append(f"| {runs} | {p} | {line['difference_held']:.1%} | {line['mean_held']:.1%} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the lines to write or to read")
    parser.add_argument("--markdown", action="store_true", help="print the table of a file")
    args = parser.parse_args()
    if args.markdown:
        print(markdown(map(json.loads, args.out.read_text().splitlines())))
        return
    noise = measured_noise()
    with args.out.open("w") as file:
        for line in (*simulate(noise), *through_command(noise)):
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
