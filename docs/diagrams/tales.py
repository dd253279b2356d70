"""The texts that the figures show."""

import contextlib
import dataclasses
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bertjax.config.config import Config, from_dict
from bertjax.data import sources
from bertjax.data.pipeline import Feed
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.data.text import sentences
from bertjax.training.feeds import Feeds

SEQ_LEN = 24


@dataclasses.dataclass(frozen=True)
class Tales:
    """Short sentences of the embedded corpus, each a document, in rows of `SEQ_LEN` tokens."""

    config: Config
    store: TokenStore
    feed: Feed


@contextlib.contextmanager
def tales() -> Iterator[Tales]:
    """Prepare the sentences in a folder of their own."""
    documents = [document.text for document in sources.documents("embedded:en", "text")]
    texts = [text for document in documents for text in sentences.split(document, "punctuation") if 12 < len(text) < 48]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        corpus = Path(folder) / "tales.jsonl"
        corpus.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        config = from_dict(
            {
                "data": {
                    "corpus": str(corpus),
                    "store": f"{folder}/store",
                    "workers": 0,
                    "tokenizer": {"kind": "wordpiece", "vocab_size": 2500},
                },
                "model": {"preset": "google_tiny"},
                "tasks": {
                    "mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "doc_sentences"}, "row_examples": 4}
                },
                "stages": [{"steps": 20_000, "seq_len": SEQ_LEN, "batch": 4}],
            }
        )
        store = prepare(config.data)
        yield Tales(config, store, Feeds(config, store).feed("train", SEQ_LEN))
