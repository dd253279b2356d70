"""Readable training rows (examples, segments, labels, masked tokens with their originals) and a packing plot."""

import itertools
from pathlib import Path

import numpy as np

from bertjax.data.pipeline import Feed
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import printable

LEGEND = (
    "[MASK]‹was› or other‹was›: the model must guess what was there; ‹=› was left as it is; below, the pieces before "
    "masking"
)
_SEGMENTS = "AB"
_DRAWN_ROWS = 1_000_000


def show(feed: Feed, tokenizer: Tokenizer, count: int) -> str:
    """Return the first `count` training rows as text. Each segment is shown as text and as pieces."""
    batch = feed.batch(np.arange(count))
    originals_BT, predicted_BT = originals_of(batch)
    lines = [LEGEND]
    for row in range(count):
        examples_T = batch["examples_BT"][row]
        ids_N = batch["example_ids_BN"][row]
        lines.append(
            f"\nrow {row}: {np.count_nonzero(examples_T)} of {len(examples_T)} positions hold tokens, "
            f"{np.count_nonzero(ids_N >= 0)} example(s), {np.count_nonzero(predicted_BT[row])} tokens to predict"
        )
        for slot in np.flatnonzero(ids_N >= 0):
            names = sorted(name for name in batch if name.endswith("_labels_BN"))
            labels = [f"{name.removesuffix('_labels_BN')}={batch[name][row, slot]}" for name in names]
            lines.append("  " + ", ".join([f"example {ids_N[slot]}", *labels]))
            for segment, name in enumerate(_SEGMENTS):
                here = (examples_T == slot + 1) & (batch["segments_BT"][row] == segment)
                if here.any():
                    tokens = (batch["tokens_BT"][row, here], originals_BT[row, here], predicted_BT[row, here])
                    pieces = " ".join(map(tokenizer.piece, originals_BT[row, here]))
                    lines.append(f"    {name}  {printable(_spell(tokenizer, *tokens))}")
                    lines.append(f"       {printable(pieces)}")
    return "\n".join(lines)


def originals_of(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens before masking, int32 [B, T], and whether any loss term predicts them, bool [B, T]."""
    originals_BT, predicted_BT = batch["tokens_BT"].copy(), np.zeros(batch["tokens_BT"].shape, bool)
    for name in batch:
        term = name.removesuffix("_positions_BK")
        # SpanBERT also gathers span boundaries, positions without a prediction.
        if term != name and f"{term}_labels_BK" in batch:
            rows, places = np.nonzero(batch[f"{term}_weights_BK"] > 0)
            columns = batch[name][rows, places]
            originals_BT[rows, columns] = batch[f"{term}_labels_BK"][rows, places]
            predicted_BT[rows, columns] = True
    return originals_BT, predicted_BT


def _spell(tokenizer: Tokenizer, tokens: np.ndarray, originals: np.ndarray, predicted: np.ndarray) -> str:
    """Return one segment as text. Adjacent unpredicted tokens are decoded together."""
    spelled = []
    for hidden, run in itertools.groupby(range(len(tokens)), key=lambda at: bool(predicted[at])):
        run = list(run)
        # One by one, predicted tokens can show their originals. The others stay together, because byte pieces alone are
        # not characters.
        parts = [[at] for at in run] if hidden else [run]
        for part in parts:
            text = tokenizer.decode(tokens[part], keep_special=True)
            if hidden:
                [at] = part
                kept = tokens[at] == originals[at]
                text += "‹=›" if kept else f"‹{tokenizer.decode(originals[part], keep_special=True)}›"
            spelled.append(text if not spelled or _follows(tokenizer, originals, part[0]) else " " + text)
    return "".join(spelled)


def _follows(tokenizer: Tokenizer, tokens: np.ndarray, at: int) -> bool:
    """Return whether token `at` > 0 follows the previous one without a space."""
    pair = tokens[at - 1 : at + 1].tolist()
    if pair[1] in tokenizer.continuation_ids:
        return True
    # Punctuation starts a word but needs no space before it.
    is_text = tokenizer.special_ids.isdisjoint(pair)
    return is_text and tokenizer.decode(pair) == "".join(tokenizer.decode([token]) for token in pair)


def draw_packing(feed: Feed, target: Path) -> None:
    """Plot three histograms: example lengths, tokens per row, and examples per row."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    plan = feed.plans[0]
    # Every n-th row of a large plan, with n rounded up.
    rows_RN = plan.rows_RN[:: -(-plan.counts.rows // _DRAWN_ROWS)]
    filled_RN = rows_RN >= 0
    # An empty slot, -1, reads the last example, and `where` replaces that length by 0.
    lengths_RN = np.where(filled_RN, plan.examples.lengths()[rows_RN], 0)
    figure = Figure(figsize=(15, 4), layout="constrained")
    # Edges between the integers, so every length has a bin of its own.
    edges = np.arange(0.5, feed.seq_len + 1)
    panels = (
        (lengths_RN[filled_RN], edges, "tokens in an example", "examples"),
        (lengths_RN.sum(axis=1), edges, f"tokens in a row of {feed.seq_len}", "rows"),
        (filled_RN.sum(axis=1), np.arange(0.5, plan.counts.slots + 1), "examples in a row", "rows"),
    )
    for axes, (values, bins, x_label, y_label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.hist(values, bins=bins)
        axes.set(xlabel=x_label, ylabel=y_label, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.suptitle(f"{plan.counts.real_share(feed.seq_len):.1%} of the positions hold tokens")
    figure.savefig(target, dpi=120)
