"""New pieces of a WordPiece vocabulary: ids, changed words, mining, and errors."""

import collections
import json

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.tokenizer import resizing, subwords, tokenizer_json
from bertjax.runtime.errors import UserError
from tests.data.tokenizer.conftest import KINDS

SYMBOLS = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "[MASK]"]


def with_pieces(tmp_path, *pieces: str, lowercase: bool = True):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in [*SYMBOLS, *pieces]))
    return subwords.from_vocab(path, lowercase)


def test_old_ids_stay_and_new_ones_follow_in_order(tmp_path):
    old = with_pieces(tmp_path, "ab", "c", "##c", "##ab")
    extension = resizing.extend(old, ["cab", "##cab", "abc", "cab", "ab"])
    assert [extension.tokenizer.piece(i) for i in range(old.vocab_size)] == [
        old.piece(i) for i in range(old.vocab_size)
    ]
    assert [extension.tokenizer.piece(i) for i in range(9, 12)] == ["cab", "##cab", "abc"] == list(extension.pieces)
    assert extension.tokenizer.vocab_size == 12 and extension.known == 2
    names = [[old.piece(i) for i in parts] for parts in extension.parts]
    assert names == [["c", "##ab"], ["##c", "##ab"], ["ab", "##c"]]
    assert extension.tokenizer.special_ids == old.special_ids
    assert extension.tokenizer.continuation_ids == old.continuation_ids | {10}


def test_mining_takes_what_saves_the_most_tokens(tmp_path):
    letters = "abcde"
    tokens = with_pieces(tmp_path, *letters, *(f"##{c}" for c in letters), "1", "##1", "bad")
    counts = collections.Counter(abc=6, abcde=5, ab=9, bad=99, zz=7, a=50, eeeeeee=4)
    counts["11"], counts["b" * 101] = 80, 80
    # Saved: abcde 4 * 5, abc 2 * 6, ab 1 * 9, zz (one [UNK]) 7; eeeeeee is rare, 11 has no letter, the last too long.
    assert resizing.mine(counts, tokens, 4) == ["abcde", "abc", "ab", "zz"]
    with pytest.raises(UserError, match="--new-pieces=5 is too many: 4 words .* ask for at most 4"):
        resizing.mine(counts, tokens, 5)


@pytest.fixture(params=[*KINDS, "unigram_json"])
def tokens(request, trained, sentences):
    """A tokenizer of each kind; Unigram also in a `tokenizer.json`, with ids that are not in the order of ours."""
    if request.param != "unigram_json":
        return trained[request.param]
    pieces = sorted({word[:n] for text in sentences for word in text.split() for n in (1, 2, 3, 5)})
    characters = sorted({character for text in sentences for character in text})
    scored = [[piece, -float(len(piece) % 4) - 1] for piece in sorted({*pieces, *characters, "\u2581"})]
    vocab = [["[CLS]", 0.0], *scored[:40], ["<unk>", 0.0], ["[PAD]", 0.0], *scored[40:], ["[SEP]", 0.0]]
    model = {"type": "Unigram", "unk_id": 41, "vocab": vocab, "byte_fallback": False}
    symbols = {"[CLS]": 0, "<unk>": 41, "[PAD]": 42, "[SEP]": len(vocab) - 1, "[MASK]": len(vocab)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": i, "content": content} | flags for content, i in symbols.items()]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    description = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": metaspace}
    description |= {"post_processor": None, "decoder": metaspace, "model": model}
    return tokenizer_json.from_json(json.dumps(description).encode(), "made")


def test_the_texts_of_the_corpus_have_the_same_pieces(tokens, sentences, tmp_path):
    corpus = sentences[:3]
    before = tokens.encode(corpus)
    trimmed, kept = resizing.trim(tokens, {i for ids in before for i in ids})
    assert np.all(np.diff(kept) > 0) and trimmed.vocab_size == len(kept) <= tokens.vocab_size
    assert [[int(kept[i]) for i in ids] for ids in trimmed.encode(corpus)] == before
    assert {int(kept[i]) for i in trimmed.special_ids} == tokens.special_ids
    assert {int(kept[i]) for i in trimmed.byte_ids} == tokens.byte_ids
    for name in ("pad_id", "unk_id", "sep_id", "cls_id", "mask_id"):
        assert kept[getattr(trimmed, name)] == getattr(tokens, name)
    assert [trimmed.piece(i) for i in range(len(kept))] == [tokens.piece(i) for i in kept]
    trimmed.save(tmp_path)
    assert tokenizer.load(tmp_path) == trimmed


def test_unused_pieces_go_and_single_characters_stay(tokens, sentences):
    trimmed, kept = resizing.trim(tokens, ())
    dropped = {tokens.piece(i) for i in range(tokens.vocab_size)} - {tokens.piece(i) for i in kept}
    bare = [piece.removeprefix("##").removeprefix("\u2581") for piece in dropped]
    assert min(map(len, bare), default=2) > 1
    every = sorted({character for text in sentences for character in text})
    unknown = [[version.unk_id in ids for ids in version.encode(every)] for version in (tokens, trimmed)]
    assert unknown[0] == unknown[1]


def test_what_is_trimmed_twice_is_trimmed_once(tokens, sentences):
    used = {i for ids in tokens.encode(sentences[:3]) for i in ids}
    trimmed, kept = resizing.trim(tokens, used)
    again, same = resizing.trim(trimmed, {i for ids in trimmed.encode(sentences[:3]) for i in ids})
    assert again == trimmed and np.array_equal(same, np.arange(len(kept)))
