"""Epochs per corpus source, computed before training, and the limits on repeated text beyond which a run warns.

Muennighoff et al. (2023, arXiv 2305.16264) find that text repeated up to 4 times is almost as good as new text, and
that beyond about 40 times it adds nothing. They measured causal language models; there are no measurements for masked
ones.
"""

import collections

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.training.feeds import Feeds
from bertjax.training.stages import Timetable

# One source of several can be drawn less often, so warn as soon as repetition costs something.
MOST_EPOCHS_OF_SOURCE = 4
# A whole corpus cannot be replaced, and BERT read its corpus 40 times (Devlin et al., 2019, appendix A.2).
MOST_EPOCHS_OF_CORPUS = 40


def epochs_by_source(feeds: Feeds, timetable: Timetable, first_step: int = 0) -> dict[str, float]:
    """Return {source: epochs from a step to the end of the run}, summed over tasks and row lengths."""
    names, epochs = list(feeds.config.data.named_sources), collections.Counter()
    for (task, seq_len), feed in feeds.train.items():
        counts = (feed.turns.taken(timetable.rows(step, task, seq_len)) for step in (timetable.steps, first_step))
        taken = np.subtract(*counts).tolist()
        read = [
            # An epoch is one plan, so divide by the mean rows of a plan.
            rows * len(source.plans) / sum(plan.counts.rows for plan in source.plans)
            for rows, source in zip(taken, feed.sources, strict=True)
        ]
        # Sources without weights are packed together into one stream, so all of them have the same epochs.
        epochs.update(dict(zip(names, read if len(read) == len(names) else read * len(names), strict=True)))
    return dict(epochs)


def lines(feeds: Feeds, timetable: Timetable, first_step: int = 0) -> list[str]:
    """Return a line with epochs per source, and a warning for each source that repeats too often.

    Args:
      first_step: the first step that the run trains itself.
    """
    sources = feeds.config.data.sources
    if len(sources) < 2 or not isinstance(feeds.store, TokenStore):
        return []
    # A mixture repeats small sources long before the corpus as a whole repeats.
    epochs = epochs_by_source(feeds, timetable, first_step)
    result = ["epochs of the sources: " + ", ".join(f"{name} {number:.1f}" for name, number in epochs.items())]
    for name, number in epochs.items():
        if number > MOST_EPOCHS_OF_SOURCE:
            result.append(
                f"warning: the run reads {name} {number:.1f} times, and text that is read more than "
                f"{MOST_EPOCHS_OF_SOURCE} times teaches less (arXiv 2305.16264); add text, train for fewer steps, or "
                f"draw it less often by data.sources.{name}.weight, its token_share or data.smoothing"
            )
    return result
