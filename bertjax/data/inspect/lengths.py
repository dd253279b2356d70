"""`lengths.png`: document and sentence length histograms for a token store."""

from pathlib import Path

import numpy as np

from bertjax.data.store import Split

NAME = "lengths.png"
COUNTED_AT_ONCE = 1 << 20
BINS_AN_OCTAVE = 4


def draw(splits: dict[str, Split], folder: Path) -> None:
    """Plot length histograms in tokens, with logarithmic bins, into `folder`."""
    # `Figure` instead of pyplot: it needs no display, and keeps no figure open.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    for axes, what in zip(figure.subplots(1, 2), ("document", "sentence"), strict=True):
        for name, split in splits.items():
            edges, counts = histogram(split, what)
            axes.stairs(counts, edges, label=name, fill=name == "train", alpha=0.7)
        axes.set(yscale="log", xlabel=f"tokens in a {what}", ylabel=f"{what}s")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()  # drawing one tick takes as long as a whole histogram
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(folder / NAME, dpi=120)


def histogram(split: Split, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a length histogram in tokens, computed in constant memory.

    Args:
      what: `document` or `sentence`.

    Returns:
      Bin edges, four bins per octave, float64 [bins+1], and counts, int64 [bins].
    """
    octaves = 1 + max(1, len(split.tokens)).bit_length()
    # Shifted by half a bin, so the lengths 1, 2, 4, ... are in the middle of a bin and not on its edge.
    edges = 2 ** (np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE - 0.5 / BINS_AN_OCTAVE)
    counts = np.zeros(len(edges) - 1, np.int64)
    starts = split.documents if what == "document" else split.sentences
    for first in range(0, len(starts) - 1, COUNTED_AT_ONCE):
        bounds = np.asarray(starts[first : first + COUNTED_AT_ONCE + 1])
        if what == "document":
            # Document offsets count sentences; these tell at which token each sentence starts.
            bounds = split.sentences[bounds]
        counts += np.histogram(np.diff(bounds), edges)[0]
    used = np.flatnonzero(counts)
    first, stop = used[0], used[-1] + 1
    return edges[first : stop + 1], counts[first:stop]
