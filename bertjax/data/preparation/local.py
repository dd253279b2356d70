"""The local runner: processes of one machine, and files that let a killed preparation resume.

An unfinished preparation is a folder `<store>.partial` with `documents.bin`, `near.bin` (if near-duplicates are
dropped), `duplicates.bin`, `reading.json` (the first pass is complete), `text/` and `tokens/` (shards) and `store/`
(the store to be).
"""

import dataclasses
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from bertjax.data import store, tokenizer
from bertjax.data.config import DataConfig
from bertjax.data.inspect.characters import characters_of
from bertjax.data.preparation import duplicates, reading, shards, workers
from bertjax.data.preparation.assembly import assemble
from bertjax.data.preparation.duplicates import Duplicates
from bertjax.data.preparation.reading import Reading
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import encode_shard
from bertjax.data.sources.bad import BadRecords
from bertjax.data.store import SPLITS
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError


class BadDocument(UserError):
    """A document holds no token, which only its encoding shows."""


@dataclasses.dataclass(frozen=True)
class ShardEncoder:
    """Encodes shards of text; pickled to the processes that do so.

    Attributes:
      folder: the unfinished preparation.
      splitter: see `sentences.split`.
      on_bad_document: `stop` or `skip` if a document holds no token.
      groups: (split, source) of each group.
    """

    folder: Path
    tokenizer: Tokenizer
    splitter: str
    on_bad_document: str
    groups: tuple[tuple[str, str], ...]

    def __call__(self, index: int) -> list[tuple[int, str]]:
        """Write a shard of tokens and return the group and the error of each document that was skipped.

        Raises:
          BadDocument: a document holds no token, and bad documents stop the preparation.
          DamagedShard: the text differs from what was written.
        """
        documents = shards.read_text(self.folder, index)
        is_duplicate = Duplicates(duplicates.path(self.folder)).contain([document.key for document in documents])
        kept = [document for document, drop in zip(documents, is_duplicate, strict=True) if not drop]
        shard = encode_shard(kept, [split for split, _ in self.groups], self.tokenizer, self.splitter)
        if shard.skipped and self.on_bad_document == "stop":
            remedy = "or set data.on_bad_document=skip, which continues with the shards that are encoded"
            raise BadDocument(f"{shard.skipped[0][1]}, {remedy}")
        shards.write_tokens(self.folder, index, shard)
        return shard.skipped


def build(config: DataConfig, spec: dict, partial: Path) -> Path:
    """Build a store, resuming what an earlier process left in `partial`, and return its folder within `partial`.

    Raises:
      DamagedShard: a file of the earlier process differs from what was written.
      UserError: see `prepare`.
    """
    folder = partial / "store"
    read = reading.load(partial / "reading.json", spec)
    if read is None:
        if partial.exists():
            print(f"{partial} holds no complete first pass of this preparation; starting from scratch", file=sys.stderr)
            shutil.rmtree(partial)
        for name in ("text", "tokens", "store/tokenizer"):
            (partial / name).mkdir(parents=True)
        read = _first_pass(config, partial)
        reading.save(read, spec, partial / "reading.json")
    trained = tokenizer.load(folder / "tokenizer")
    _second_pass(config, partial, read, trained)
    contents = assemble(partial, read, store.token_dtype(trained.vocab_size), folder)
    _require_two({name: sum(c["documents"] for c in contents["counts"][name].values()) for name in SPLITS}, config)
    store.write_manifest(folder, spec, trained, contents)
    return folder


def _first_pass(config: DataConfig, partial: Path) -> Reading:
    """Read the corpus. Train the tokenizer on a sample of the training documents, or take an existing one."""
    settings = config.tokenizer
    read, sentences = reading.read(config, partial, Sample(settings.sample_characters))
    _require_two({name: read.documents(name) for name in SPLITS}, config)
    if settings.model:
        trained = tokenizer.from_model(settings.model, settings.lowercase)
    else:
        trained = tokenizer.train(sentences, settings)
    trained.save(partial / "store" / "tokenizer")
    characters_of(sentences, trained).save(partial / "store")
    return read


def _second_pass(config: DataConfig, partial: Path, read: Reading, trained: Tokenizer) -> None:
    """Encode the shards that are not encoded yet."""
    indices = range(len(read.shard_bytes))
    done = {index for index in indices if shards.tokens_path(partial, index).exists()}
    for index in done:
        shards.check_tokens(partial, index)
        shards.text_path(partial, index).unlink(missing_ok=True)
    if done:
        print(f"resuming {partial}: {len(done)} of {len(indices)} shards are encoded", file=sys.stderr, flush=True)
    bad = BadRecords(config.on_bad_document, "documents")
    encoder = ShardEncoder(partial, trained, config.splitter, config.on_bad_document, read.groups)
    todo = [index for index in indices if index not in done]
    finished = sum(read.shard_bytes[index] for index in done)
    with tqdm(
        total=sum(read.shard_bytes), initial=finished, desc="encoding", unit="B", unit_scale=True, disable=None
    ) as bar:
        for index, skipped in workers.unordered(encoder, todo, workers.number(config.workers)):
            for group, message in skipped:
                bad.add(read.groups[group][1], UserError(message))
            shards.text_path(partial, index).unlink()
            bar.update(read.shard_bytes[index])


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
        remedy += f", raise data.heldout_share={config.heldout_share} or name a file as data.heldout"
    corpus = ", ".join(repr(source.corpus) for source in config.named_sources.values())
    raise UserError(
        f"corpus {corpus} gives {train} training and {heldout} held-out documents, but two of each are needed: {remedy}"
    )
