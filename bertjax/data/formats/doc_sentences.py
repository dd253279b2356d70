"""Doc sentences: examples never cross a document boundary (Liu et al. 2019, RoBERTa, arXiv 1907.11692, 4.2)."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bertjax.data.formats.base import document_runs
from bertjax.data.formats.runs import RunFormat, Runs, document_edges, pieces
from bertjax.data.store import Split


@dataclasses.dataclass(frozen=True)
class DocSentences(RunFormat):
    """[CLS] text [SEP] from one document; its last example may be short. No token is lost or repeated."""

    kind: str = dataclasses.field(init=False, default="doc_sentences")
    across: ClassVar[bool] = False

    def _at_tokens(self, split: Split, room: int) -> Iterator[Runs]:
        for part, start, stop in document_runs(split):
            edges = document_edges(part, start, stop)
            begin, end, document = pieces(edges[:-1], edges[1:], room)
            yield begin, end, np.zeros_like(begin), start + document
