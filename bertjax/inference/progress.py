"""How far a long computation is, on stderr: the share, the speed and the time left."""

import sys

from tqdm import tqdm

# What is over sooner needs no bar.
_SECONDS = 3
# A log file is no place for a line ten times a second.
_SECONDS_IN_A_FILE = 30


def bar(tokens: int) -> tqdm:
    """A bar over this many tokens; `bar.update(tokens)` says how many more are done."""
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
