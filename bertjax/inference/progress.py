"""Progress bar on stderr for long computations: fraction done, speed and time left."""

import sys

from tqdm import tqdm

# Shorter computations show no bar.
_SECONDS = 3
# Seconds between two progress lines in a log file.
_SECONDS_IN_A_FILE = 30


def bar(tokens: int) -> tqdm:
    """Return a progress bar over this many tokens; `bar.update(tokens)` advances it."""
    return tqdm(
        total=tokens,
        unit=" tokens",
        unit_scale=True,
        delay=_SECONDS,
        mininterval=0.1 if sys.stderr.isatty() else _SECONDS_IN_A_FILE,
        leave=False,
        file=sys.stderr,
        dynamic_ncols=True,
    )
