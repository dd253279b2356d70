"""Workdirs written by hand, as runs leave them."""

import json
from pathlib import Path

from bertjax.config.config import from_dict, to_dict

STEPS = 20
CONFIG = {
    "model": {"layers": 2, "width": 32, "heads": 2, "feedforward": 64, "max_positions": 32},
    "optimizer": {"warmup_steps": 2},
    "stages": [{"steps": STEPS, "seq_len": 32, "batch": 8}],
}


def record(step: int, loss: float | None = None, heldout: float | None = None, speed: float = 2.0) -> dict:
    """A line of `metrics.jsonl`: 100 tokens and 1,000 FLOPs a step, `speed` seconds."""
    entry = {"step": step, "tokens": 100.0 * step, "flops": 1000.0 * step, "seconds": speed * step}
    if loss is not None:
        entry["train/mlm_loss"] = loss
    if heldout is not None:
        entry |= {"eval/heldout/mlm_loss": heldout, "eval/heldout/mlm_accuracy": heldout / 10}
    return entry


def write(
    root: Path,
    records: list[dict],
    settings: dict | None = None,
    baseline: dict | None = None,
    store: str = "a" * 64,
    finished: bool = True,
) -> Path:
    """A workdir; with a baseline it has a summary, of the last record.

    Args:
      root: where.
      records: of `metrics.jsonl`.
      settings: in place of those of CONFIG, by their first name.
      baseline: of the summary.
      store: fingerprint of the store.
      finished: whether the summary is that of the end of the run.
    """
    root.mkdir(parents=True)
    config = from_dict(CONFIG | (settings or {}))
    written = {"format_version": 1, "config": to_dict(config), "settings": to_dict(config), "vocab_size": 100}
    identity = config.identity(store) | {"plans": {"bert/32": f"plan of {root.name}"}}
    (root / "config.json").write_text(json.dumps(written | {"identity": identity}))
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    if baseline is not None:
        last = records[-1]
        metrics = {key.split("/")[-1]: value for key, value in last.items() if key.startswith("eval/")}
        figures = {
            "finished": finished,
            "parameters": 1000,
            "eval": metrics,
            "baseline": baseline,
            "steps": last["step"],
            "tokens": last["tokens"],
            "flops": last["flops"],
        }
        figures |= {"seconds": last["seconds"] + 10.0, "tokens_per_second": 40.0, "accounts": {}}
        (root / "summary.json").write_text(json.dumps(figures))
    return root
