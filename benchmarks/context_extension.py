"""Context extension at toy size: does a larger rotary base help a model that goes from short to long rows?

    python -m benchmarks.context_extension --out=benchmarks/results/context_extension.jsonl --markdown

A character model of ModernBERT's kind, all layers global, is trained on rows of 128 tokens. Two runs continue from it
(`init_from`) on rows of 512, one with its base and one with a larger base. Both bases are to their lengths as the
paper's: 10,000 at 1,024 tokens, 160,000 at 8,192 (Warner et al., 2024, arXiv 2412.13663, section 2.2). A line has the
MLM loss on held-out rows of 512 tokens for one seed, at positions of the short rows and at those beyond. The same
command continues with the seeds that have no line.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import resumable
from bertjax.cli import train
from bertjax.config.config import Config, from_dict
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.runtime import platform
from bertjax.runtime.command_line import exit_code_of
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import open_feeds

SHORT, LONG = 128, 512
SHORT_BASE, LONG_BASE = 1250.0, 10_000.0
TOKENS, ROWS = 1024, 256  # tokens per batch, held-out rows
MLM = {
    "objective": {"kind": "mlm", "masking": {"kind": "tokens", "rate": 0.3}},
    "examples": {"kind": "doc_sentences"},
}
# What a table calls the models, and a line its figures.
MODELS = {
    "short": f"short rows, read with {SHORT_BASE:g}",
    "short, larger base": f"short rows, read with {LONG_BASE:g}",
    "long": f"then long rows, {SHORT_BASE:g}",
    "long, larger base": f"then long rows, {LONG_BASE:g}",
}


class Cell(NamedTuple):
    """A seed, and the steps on short and on long rows."""

    seed: int
    steps: tuple[int, int]


def config_of(seed: int, steps: int, length: int, base: float, source: str = "") -> Config:
    """Return the configuration of a run that starts from a source, if there is one."""
    sizes = {"layers": 2, "width": 64, "heads": 2, "feedforward": 96, "dropout": 0.0, "attention_dropout": 0.0}
    # Narrow models leave the plateau of the unigram distribution late if they start small.
    model = {**sizes, "norm_epsilon": 1e-5, "init_stddev": 0.08, "embeddings": {"segments": 0, "positions": "none"}}
    block = {"kind": "modern", "window": 0, "global_every": 1, "rotary_base": base}
    return from_dict(
        {
            "seed": seed,
            "init_from": source,
            "model": model | {"block": block},
            "data": {"tokenizer": {"kind": "char", "vocab_size": 200, "byte_fallback": False}},
            "tasks": {"mlm": MLM},
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": steps // 10},
            "stages": [{"steps": steps, "seq_len": length, "batch": TOKENS // length}],
            "eval": {"every": steps, "rows": 32, "samples": 0},
            "runtime": {"unroll": True, "log_every": 100, "save_every": steps, "steps_per_call": 10},
        }
    )


def losses(model: Export, base: float, feeds: Feeds) -> dict[str, float]:
    """Return the mean MLM loss in nats at positions below and beyond the short rows, read with a rotary base."""
    objective, feed = feeds.objectives["mlm"], feeds.heldout["mlm"]
    network = objective.model(model.encoder.replace({"block.rotary_base": base}))

    @jax.jit
    def losses_of(params: dict, batch: dict[str, jax.Array]) -> jax.Array:
        logits_BKV = network.apply({"params": params}, batch, method=objective.mlm_logits)
        true_BK = jnp.take_along_axis(logits_BKV, batch["mlm_labels_BK"][..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits_BKV, axis=-1) - true_BK

    rows, sums = TOKENS // LONG, np.zeros((2, 2))
    for first in range(0, min(ROWS, feed.plans[0].counts.rows) // rows * rows, rows):
        batch = feed.batch(np.arange(first, first + rows))
        is_beyond_BK = np.take_along_axis(batch["positions_BT"], batch["mlm_positions_BK"], axis=1) >= SHORT
        losses_BK, weights_BK = np.asarray(losses_of(model.params, batch)), batch["mlm_weights_BK"]
        for side, is_here_BK in enumerate((~is_beyond_BK, is_beyond_BK)):
            sums[side] += np.sum(losses_BK * weights_BK * is_here_BK), np.sum(weights_BK * is_here_BK)
    return dict(zip(("below", "beyond"), (sums[:, 0] / sums[:, 1]).tolist(), strict=True))


def measured(cell: Cell, folder: Path) -> resumable.Line:
    """Train the three runs of a seed, and return their losses, of the short one with both bases."""
    source = str(folder / "short" / "export")
    train.run(config_of(cell.seed, cell.steps[0], SHORT, SHORT_BASE), folder / "short")
    line: dict[str, Any] = {"seed": cell.seed, "steps": list(cell.steps)}
    for suffix, base in (("", SHORT_BASE), (", larger base", LONG_BASE)):
        config, workdir = config_of(cell.seed, cell.steps[1], LONG, base, source), folder / f"long{base:g}"
        train.run(config, workdir)
        for name, export in (("short", source), ("long", workdir / "export")):
            line[f"{name}{suffix}"] = losses(SavedModel(export).export, base, open_feeds(config))
    for workdir in folder.iterdir():
        shutil.rmtree(workdir)
    return line


def markdown(lines: list[resumable.Line]) -> str:
    """Return the table of all lines: means over seeds, and their range."""
    text = [f"| model | positions below {SHORT} | positions from {SHORT} on |", "|---|---|---|"]
    for name, shown in MODELS.items():
        values = ([line[name][side] for line in lines] for side in ("below", "beyond"))
        cells = (f"{statistics.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for v in values)
        text.append(f"| {' | '.join([shown, *cells])} |")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of raw lines")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs=2, default=(2000, 400), help="on short, on long rows")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file at the end")
    args = parser.parse_args()
    platform.configure("cpu")
    steps = (args.steps[0], args.steps[1])
    done = {line["seed"] for line in resumable.finished(args.out) if tuple(line["steps"]) == steps}
    left = {f"seed {seed}": Cell(seed, steps) for seed in range(args.seeds) if seed not in done}
    with tempfile.TemporaryDirectory() as folder:
        resumable.run(left, args.out, lambda cell: measured(cell, Path(folder)))
    if args.markdown:
        print(markdown([line for line in resumable.finished(args.out) if tuple(line["steps"]) == steps]))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
