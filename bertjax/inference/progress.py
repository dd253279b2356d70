"""The progress bar of a long computation, on stderr: the share done, the speed and the time left."""

import sys

from tqdm import tqdm

# A computation that is shorter than this shows no bar.
_SECONDS = 3
# Time between two lines of progress in a log file.
_SECONDS_IN_A_FILE = 30


def bar(tokens: int) -> tqdm:
    """Return a bar over this many tokens; `bar.update(tokens)` adds tokens that are done."""
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
