"""For the page of a run: its first training rows, token by token."""

from pathlib import Path

import numpy as np

from bertjax.analysis.page import Section, Token, TokenRow
from bertjax.data import tokenizer
from bertjax.data.inspect.show import originals_of
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.pipeline import Feed
from bertjax.data.preparation.spec import corpora, find
from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import labeled_files
from bertjax.training.results.report import plan_line
from bertjax.training.run.record import RunRecord, with_split
from bertjax.training.run.workdir import Workdir

_NAME, _TITLE = "rows", "What a row of data looks like"
_MOST_TASKS = 4


def section_of(workdir: Workdir, record: RunRecord) -> Section:
    """Return the first training rows of a run, or the reason why they cannot be shown. Nothing is prepared."""
    try:
        feeds = _feeds(workdir, record)
        shown = list(feeds.train.items())[:_MOST_TASKS]
        label = record.config.qualified
        lines = [f"{plan_line(feed, task, label(task, '').rstrip('/'))}." for (task, _), feed in shown]
        # One task gets two rows, a mixture one row per task.
        count = 2 if len(shown) == 1 else 1
        rows = [row for (task, _), feed in shown for row in rows_of(feed, feeds.store_of(task).tokenizer, count, task)]
    except (UserError, OSError) as error:
        return Section(_NAME, _TITLE, skipped=" ".join(str(error).splitlines()))
    legend = (
        "Blue is segment A, yellow segment B. A framed token is predicted: above is what the model reads, below what "
        "was there before masking. Padding is left out."
    )
    return Section(_NAME, _TITLE, (*lines, legend), tuple(rows))


def _feeds(workdir: Workdir, record: RunRecord) -> Feeds:
    """Return the data feeds of a run.

    Raises:
      UserError: its token store is not on this machine, or its labeled files cannot be read.
    """
    config = record.config
    if isinstance(config.task.examples, LabeledFormat):
        config = with_split(workdir, config)
        return Feeds(config, labeled_files(config, tokenizer.load(Path(workdir.tokenizer))))
    # Found by fingerprint: the store must be the one that the run has read, not a newer one.
    path = find(config.data, record.identity["data"]["store_fingerprint"])
    if path is None:
        raise UserError(
            f"data.store={config.data.store} does not hold the token store of the run ({corpora(config.data)}); run "
            "the command where the run was trained"
        )
    return Feeds(config, TokenStore.open(path, cache_dir=config.data.cache_dir))


def rows_of(feed: Feed, tokenizer: Tokenizer, count: int, task: str) -> list[TokenRow]:
    """Return the first training rows of a feed, token by token, without padding."""
    batch = feed.batch(np.arange(count))
    originals_BT, predicted_BT = originals_of(batch)
    rows = []
    for row in range(count):
        real = np.flatnonzero(batch["examples_BT"][row])
        tokens = tuple(
            Token(
                text=tokenizer.piece(int(batch["tokens_BT"][row, at])),
                segment=int(batch["segments_BT"][row, at]),
                original=tokenizer.piece(int(originals_BT[row, at])) if predicted_BT[row, at] else "",
            )
            for at in real
        )
        examples = np.flatnonzero(batch["example_ids_BN"][row] >= 0)
        labels = [
            f"{name.removesuffix('_labels_BN')}={', '.join(str(batch[name][row, slot]) for slot in examples)}"
            for name in sorted(batch)
            if name.endswith("_labels_BN")
        ]
        caption = (
            f"Row {row} of {task}: {len(real)} of {feed.seq_len} positions hold tokens; examples: {len(examples)}; "
            f"tokens to predict: {np.count_nonzero(predicted_BT[row])}"
            + "".join(f"; {label}" for label in labels)
            + "."
        )
        rows.append(TokenRow(caption, tokens))
    return rows
