"""From a configuration and a token store to the feeds of its task: which plans, whose turn, in which order."""

from collections.abc import Iterator

from bertjax.config import Config
from bertjax.data.examples import Vocabulary
from bertjax.data.order import SMALLEST_SHARE, Epochs, Turns
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Plan, Spec, open_or_make
from bertjax.data.store import TokenStore
from bertjax.errors import UserError


def make_feed(config: Config, store: TokenStore, split: str, seq_len: int) -> Feed:
    """Batches of a split, its rows in a random order, which is another one in every epoch.

    Held-out rows are those of all sources together. So are training rows, unless the sources have weights of their
    own: each is then planned apart, and has `weight` times the turns that its number of rows would give it.

    Raises:
      UserError: the split is too small for the example format, or a source for its weight.
    """
    train = split == "train"
    sources = config.data.named_sources
    apart = train and len({source.weight for source in sources.values()}) > 1
    epochs = tuple(
        Epochs(
            plans=tuple(_plans(config, store, split, seq_len, name)),
            stream=f"rows/{name}" if name else "rows",
            seed=config.seed,
            shuffle=True,  # a plan begins with its fullest rows, and an evaluation may use a part of them
        )
        for name in (sources if apart else [""])
    )
    weights = [source.weight for source in sources.values()] if apart else [1.0]
    rows = [weight * each.plans[0].counts.rows for weight, each in zip(weights, epochs)]
    shares = tuple(count / sum(rows) for count in rows)
    if min(shares) < SMALLEST_SHARE:
        name = list(sources)[shares.index(min(shares))]
        raise UserError(
            f"data.sources.{name} would have {min(shares):.3%} of the rows, and the least is {SMALLEST_SHARE:.3%}; "
            "raise its weight, or give all sources the same"
        )
    return Feed(
        sources=epochs,
        turns=Turns(shares),
        features=config.task.objective.opened(store).features,
        vocabulary=Vocabulary.of(store.tokenizer),
        seq_len=seq_len,
    )


def _plans(config: Config, store: TokenStore, split: str, seq_len: int, source: str) -> Iterator[Plan]:
    task = config.task
    for number in range(task.plans if split == "train" else 1):
        spec = Spec(split, task.examples, seq_len, config.seed, task.row_examples, source, number)
        yield open_or_make(store, spec)
