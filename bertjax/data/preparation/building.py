"""The order of a preparation, whichever runner applies its steps.

An unfinished preparation is a folder `<store>.partial` with `documents.bin`, `near.bin` (if near-duplicates are
dropped), `duplicates.bin`, `reading.json` (the first pass is complete), `store/` (the store to be), and what the runner
keeps there.
"""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertjax.data import store, tokenizer
from bertjax.data.config import DataConfig
from bertjax.data.inspect.characters import characters_of
from bertjax.data.preparation import reading
from bertjax.data.preparation.assembly import assemble
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.steps import EncodedShard
from bertjax.data.store import SPLITS
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError


class Runner(Protocol):
    """Applies the steps to documents and shards. All runners give the same documents in the same order."""

    def identity(self, partial: Path) -> dict[str, Any]:
        """Return what an unfinished preparation must share with this one to be resumed, as JSON values."""
        ...

    def read(self, config: DataConfig, partial: Path) -> tuple[Reading, list[str]]:
        """Read every document, find duplicates and return the sentences that a tokenizer trains on.

        Raises:
          UserError: a source cannot be read, or a document is bad and bad documents stop the preparation.
        """
        ...

    def encode(
        self, config: DataConfig, partial: Path, read: Reading, trained: Tokenizer, token_dtype: np.dtype
    ) -> Iterable[EncodedShard]:
        """Encode the shards that are not encoded yet, and return all of them in the order of the corpus.

        Raises:
          DamagedShard: a shard differs from what was written.
          UserError: a document holds no token, and bad documents stop the preparation.
        """
        ...

    def clean(self, partial: Path) -> None:
        """Remove what the runner keeps outside of `partial`."""
        ...


def build(config: DataConfig, spec: dict[str, Any], partial: Path, runner: Runner) -> Path:
    """Build a store, resuming what an earlier process left in `partial`, and return its folder within `partial`.

    Raises:
      DamagedShard: a file of the earlier process differs from what was written.
      UserError: see `prepare`.
    """
    folder = partial / "store"
    identity = spec | runner.identity(partial)
    read = reading.load(partial / "reading.json", identity)
    if read is None:
        if partial.exists():
            print(f"{partial} holds no complete first pass of this preparation; starting from scratch", file=sys.stderr)
            shutil.rmtree(partial)
        (folder / "tokenizer").mkdir(parents=True)
        read = _first_pass(config, partial, runner)
        reading.save(read, identity, partial / "reading.json")
    trained = tokenizer.load(folder / "tokenizer")
    token_dtype = store.token_dtype(trained.vocab_size)
    contents = assemble(runner.encode(config, partial, read, trained, token_dtype), read, folder)
    _require_two({name: sum(c["documents"] for c in contents["counts"][name].values()) for name in SPLITS}, config)
    store.write_manifest(folder, spec, trained, contents)
    return folder


def _first_pass(config: DataConfig, partial: Path, runner: Runner) -> Reading:
    """Read the corpus. Train the tokenizer on a sample of the training documents, or take an existing one."""
    settings = config.tokenizer
    read, sentences = runner.read(config, partial)
    _require_two({name: read.documents(name) for name in SPLITS}, config)
    if settings.model:
        trained = tokenizer.from_model(settings.model, settings.lowercase)
    else:
        trained = tokenizer.train(sentences, settings)
    trained.save(partial / "store" / "tokenizer")
    characters_of(sentences, trained).save(partial / "store")
    return read


def _require_two(documents: dict[str, int], config: DataConfig) -> None:
    """Raise UserError unless each split has two documents."""
    train, heldout = documents["train"], documents["heldout"]
    if train >= 2 and heldout >= 2:
        return
    remedy = "add documents (in .txt a blank line ends one)"
    if config.filters or config.near_duplicates.drop:
        remedy += ", drop fewer with data.filters and data.near_duplicates"
    if config.share < 1:
        remedy += f", raise data.share={config.share}"
    if not config.heldout:
        enough = train + heldout >= 4
        remedy += f", raise data.heldout_share={config.heldout_share}" * enough + " or name a file as data.heldout"
    corpus = ", ".join(repr(source.corpus) for source in config.named_sources.values())
    raise UserError(
        f"corpus {corpus} gives {train} training and {heldout} held-out documents, but two of each are needed: {remedy}"
    )
