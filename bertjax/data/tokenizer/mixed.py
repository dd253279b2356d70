"""WordPiece with two vocabularies, a teacher's and its student's (Zhao et al., arXiv 1909.11687).

Training a teacher on such texts puts both vocabularies' embeddings in one space, because pieces from each appear in the
other's context. `bertjax.data.tokenizer.resizing.mix` makes one.
"""

import functools
import hashlib
import json
from typing import Any

import numpy as np

from bertjax.data.random import uniform
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.runtime.errors import quoted

# Field in the description for everything that `describe` adds.
_FIELD = "mixed"


class MixedTokenizer(HuggingFaceTokenizer):
    """Splits each word with the first or the second vocabulary.

    A hash over the text and the word's position picks the vocabulary, so the same text always gets the same tokens. A
    word that the second vocabulary cannot spell uses the first. The first tokenizer's ids are unchanged; pieces that
    only the second has follow after them.
    """

    MODEL_FILE = "mixed.json"

    def _library_json(self) -> str:
        return json.dumps(_union(self.description), ensure_ascii=False)

    def _check_model(self, model: dict[str, Any]) -> None:
        if model["type"] != "WordPiece":
            raise ValueError(f"its kind is {quoted(model['type'])}, and its file is that of two WordPiece vocabularies")
        super()._check_model(model)
        ids, known = self.description[_FIELD]["ids"], set(model["vocab"].values())
        if not isinstance(ids, list) or not all(type(i) is int and i in known for i in ids):
            raise ValueError("the ids of its second vocabulary are not ids of its pieces")
        if not isinstance(share := self.description[_FIELD]["share"], float) or not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of its second vocabulary is {quoted(share)}")

    @functools.cached_property
    def second_ids(self) -> np.ndarray:
        """Maps the second tokenizer's ids to ids in this one; int64 [V]."""
        return np.array(self.description[_FIELD]["ids"], np.int64)

    @property
    def second_fingerprint(self) -> str:
        """The second tokenizer's fingerprint."""
        return self.description[_FIELD]["fingerprint"]

    @functools.cached_property
    def _first(self) -> HuggingFaceTokenizer:
        return self._with(lambda token_id: token_id < self.description[_FIELD]["first"])

    @functools.cached_property
    def _second(self) -> HuggingFaceTokenizer:
        ids = self.special_ids.union(self.second_ids.tolist())
        return self._with(ids.__contains__)

    def _with(self, has) -> HuggingFaceTokenizer:
        """Return a tokenizer restricted to some pieces, which keep their ids."""
        union = _union(self.description)
        vocab = {piece: i for piece, i in union["model"]["vocab"].items() if has(i)}
        union["model"] = union["model"] | {"vocab": vocab}
        return HuggingFaceTokenizer(json.dumps(union, ensure_ascii=False).encode())

    def encode(self, sentences: list[str]) -> list[list[int]]:
        return [ids.tolist() for ids, _ in self._mixed(sentences)]

    def _aligned(self, texts: list[str]) -> list[tuple[list[int], np.ndarray]]:
        both = [tokenizer._aligned(texts) for tokenizer in (self._first, self._second)]
        aligned = []
        for (ids, places), (_, first), (_, second) in zip(self._mixed(texts), *both, strict=True):
            aligned.append((ids.tolist(), np.concatenate([first, second])[places]))
        return aligned

    def _mixed(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (ids, places) per text; a place indexes the first vocabulary's tokens followed by the second's."""
        processors = (self._first._processor, self._second._processor)
        both = (processor.encode_batch(texts, add_special_tokens=False) for processor in processors)
        return [self._merge(*encodings) for encodings in zip(texts, *both, strict=True)]

    def _merge(self, text: str, first, second) -> tuple[np.ndarray, np.ndarray]:
        ids = np.array(first.ids + second.ids, np.int64)
        words = np.array(first.word_ids + second.word_ids, np.int64)
        is_second = np.arange(len(ids)) >= len(first.ids)
        number = np.arange(words.max(initial=-1) + 1)
        digest = np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
        draws_second = uniform(0, "vocabulary of a word", 0, digest, number) < self.description[_FIELD]["share"]
        draws_second[words[is_second & (ids == self.unk_id)]] = False  # never lose a word that the first one can spell
        places = np.flatnonzero(draws_second[words] == is_second)
        places = places[np.argsort(words[places], kind="stable")]
        return ids[places], places


def describe(union: dict[str, Any], second: HuggingFaceTokenizer, first_size: int, share: float) -> bytes:
    """Build a `MixedTokenizer` model.

    Args:
      union: WordPiece `tokenizer.json` with the pieces from both vocabularies.
      second: second tokenizer. Its special symbols map to the union's, or to [UNK] if the union lacks them.
      first_size: number of ids in the first tokenizer.
      share: probability that a word is split by the second vocabulary.
    """
    own = HuggingFaceTokenizer(json.dumps(union, ensure_ascii=False).encode())
    names = ("pad_id", "unk_id", "sep_id", "cls_id", "mask_id")
    symbols = {getattr(second, name): getattr(own, name) for name in names}

    def id_of(token_id: int) -> int:
        if token_id in second.special_ids:
            return symbols.get(token_id, own.unk_id)
        return union["model"]["vocab"].get(second.piece(token_id), own.unk_id)

    ids = [id_of(token_id) for token_id in range(second.vocab_size)]
    settings = {"first": first_size, "ids": ids, "share": float(share), "fingerprint": second.fingerprint}
    return json.dumps(union | {_FIELD: settings}, ensure_ascii=False).encode()


def _union(description: dict[str, Any]) -> dict[str, Any]:
    """Return the plain WordPiece description with all pieces."""
    return {name: value for name, value in description.items() if name != _FIELD}
