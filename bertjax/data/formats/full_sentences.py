"""Full sentences: examples continue across documents (Liu et al. 2019, RoBERTa, arXiv 1907.11692, 4.2)."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bertjax.data.formats.base import document_runs
from bertjax.data.formats.runs import RunFormat, Runs, document_edges
from bertjax.data.store import Split


@dataclasses.dataclass(frozen=True)
class FullSentences(RunFormat):
    """[CLS] text [SEP] text ... [SEP], with a [SEP] between documents. No token is lost or repeated."""

    kind: str = dataclasses.field(init=False, default="full_sentences")
    across: ClassVar[bool] = True

    def _at_tokens(self, split: Split, room: int) -> Iterator[Runs]:
        """Concatenate all documents, with a separator after each, and cut every `room` positions.

        A separator next to a cut is dropped, because the example already has [CLS] or [SEP] there. Such an example is
        one token short, so every cut stays at a multiple of `room` whatever precedes it.
        """
        origin = split.sentences[split.documents[0]]
        begin, begin_document = origin, 0
        for part, start, stop in document_runs(split):
            edges = document_edges(part, start, stop)
            # Position of each document edge in the concatenation: one separator per document before it.
            stream = edges - origin + np.arange(start, stop + 1)
            is_last = stop == len(part.documents) - 1
            end = stream[-1] - is_last
            cuts = np.arange(-(-max(stream[0], 1) // room) * room, end, room)
            if is_last:
                cuts = np.append(cuts, end)

            owner = np.searchsorted(stream, cuts, side="right") - 1
            token = origin + cuts - (start + owner)
            # At a document's edge the separator is dropped: the cut belongs to the next document for the example that
            # starts there, and to the document before for the one that ends there.
            next_document = start + owner + (token == edges[owner + 1])
            last_document = start + owner - (token == edges[owner])

            begins = np.concatenate([[begin], token])
            begin_documents = np.concatenate([[begin_document], next_document])
            begin, begin_document = begins[-1], begin_documents[-1]
            is_filled = token > begins[:-1]
            separators = last_document - begin_documents[:-1]
            yield tuple(each[is_filled] for each in (begins[:-1], token, separators, begin_documents[:-1]))
