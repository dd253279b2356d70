"""Words that are encoded one by one, and those around [MASK], have the pieces that they have inside of a text."""

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data import tokenizer
from bertjax.data.tokenizer import tokenizer_json
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer, _without_prefix_space
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS
# Two sentences of Japanese, without spaces.
JAPANESE = ["東京都に住んでいます。", "新しい図書館で本を借りました。"]


@pytest.fixture(scope="module")
def tokenizers(trained):
    """Every kind as it is trained here, and those that put no space before a text, as RoBERTa is published."""
    published = {"byte_bpe without a space": HuggingFaceTokenizer(_without_prefix_space(trained["byte_bpe"].model))}
    description = trained["unigram"].description
    bare = type(description).FromString(description.SerializeToString())
    bare.normalizer_spec.add_dummy_prefix = False
    published["unigram without a space"] = SentencePieceTokenizer(bare.SerializeToString(), "nfc")
    return trained | published


NAMES = [*KINDS, "byte_bpe without a space", "unigram without a space"]


@pytest.mark.parametrize("name", NAMES)
def test_words_after_spaces_have_the_pieces_of_running_text(tokenizers, sentences, name):
    tokens, usual = tokenizers[name], tokenizers[name.split(" ")[0]]
    for sentence in sentences[:40]:
        words = sentence.split()
        ids = list(itertools.chain.from_iterable(tokens.encode_inside(words)))
        assert ids == usual.encode_flat([" ".join(words)])[0].tolist()


@pytest.mark.parametrize("scheme", ["never", "first", "always"])
def test_a_unigram_tokenizer_json_keeps_the_spaces_of_words(scheme):
    pieces = ["<unk>", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *"\u2581abc", "\u2581ab", "ab"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    metaspace = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": scheme, "split": True}
    description = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": symbol} | flags for i, symbol in enumerate(pieces[:5])],
        "normalizer": None,
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]},
    }
    tokens = tokenizer_json.from_json(json.dumps(description).encode(), "made")
    words = ["ab", "c", "ab"]
    [start], [running] = tokens.encode(words[:1]), tokens.encode([" ".join(words)])
    inside = [*start, *itertools.chain.from_iterable(tokens.encode_inside(words[1:]))]
    assert inside == running and [tokens.piece(i) for i in running[len(start) :]] == ["\u2581", "c", "\u2581ab"]
    assert tokens.decode(running) == tokens.decode(tokens.encode_inside([" ".join(words)])[0]) == "ab c ab"
    assert tokens.encode_inside([""]) == [[]]


@pytest.mark.parametrize("kind", KINDS)
def test_characters_without_spaces_between_them_start_no_words(kind):
    size = {"unigram": 285, "wordpiece": 46}.get(kind, 320)
    tokens = tokenizer.train(JAPANESE * 20, TokenizerConfig(kind=kind, vocab_size=size))
    [text, _] = JAPANESE
    ids = tokens.encode_inside(list(text), [True] + [False] * (len(text) - 1))
    assert all(ids) and tokens.unk_id not in itertools.chain.from_iterable(ids)
    assert tokens.decode(itertools.chain.from_iterable(ids)).replace(" ", "") == text
    assert not any(tokens.piece(i).startswith((WORD_START, "\u0120")) for of_word in ids[1:] for i in of_word)


@pytest.mark.parametrize("name", NAMES)
@given(texts=st.lists(st.text("ab \u00e9\uc11c東", max_size=6), max_size=4), is_spaced=st.booleans())
def test_each_text_has_its_own_ids(tokenizers, name, texts, is_spaced):
    tokens = tokenizers[name]
    encoded = tokens.encode_inside(texts, [is_spaced] * len(texts))
    assert encoded == [tokens.encode_inside([text], [is_spaced])[0] for text in texts]
    if not is_spaced:
        assert all(bool(ids) <= bool(text.strip()) for text, ids in zip(texts, encoded))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_around_a_mask_are_those_around_a_masked_piece(trained, sentences, korean, kind):
    """A word, or its start up to the end of a piece, is replaced by [MASK]; no other token changes."""
    tokens, draw, seen = trained[kind], random.Random(0), {"continues": 0, "ends": 0}
    for text in (" ".join(line.split()) for line in sentences[:60] + korean[:20]):
        [ids] = tokens.encode([text])
        for cut in draw.sample(range(1, len(text)), min(20, len(text) - 1)):
            [head] = tokens.encode([text[:cut]])
            word = text[:cut].rfind(" ") + 1
            if " " in text[cut - 1 : cut + 1] or ids[: len(head)] != head or tokens.unk_id in ids:
                continue
            [before] = tokens.encode([text[:word].rstrip()])
            seen["continues" if text[cut].isalnum() else "ends"] += 1
            masked = f"{text[:word]}[MASK]{text[cut:]}"
            assert tokens.encode_masked([masked]) == [[*before, tokens.mask_id, *ids[len(head) :]]], masked
    assert min(seen.values()) > 5, seen


@pytest.mark.parametrize("kind", KINDS)
def test_many_masks_and_none(trained, kind):
    tokens = trained[kind]
    mask, [[the], [same]] = tokens.mask_id, (tokens.encode([text])[0][:1] for text in ("the", "same"))
    assert tokens.encode_masked(["[MASK]", "[MASK] [MASK]  [MASK]", ""]) == [[mask], [mask] * 3, []]
    [ids] = tokens.encode_masked([" [MASK]  the [MASK] same[MASK] "])
    assert (ids[0], ids[-1], ids[1], ids.count(mask)) == (mask, mask, the, 3) and same in ids
    texts = ["the same, and more of it", "a [SEP] b"]
    assert tokens.encode_masked(texts) == tokens.encode(texts)
    assert tokens.mask_id not in tokens.encode(["a [MASK]"])[0]


def test_a_long_word_after_a_mask_is_unknown_as_elsewhere(trained):
    """In time that does not grow with its length: a text without spaces is one word."""
    tokens, word = trained["wordpiece"], "the" * 20_000
    assert tokens.encode([word]) == [[tokens.unk_id]]
    assert tokens.encode_masked([f"[MASK]{word}"]) == [[tokens.mask_id, tokens.unk_id]]


def test_a_symbol_with_another_spelling_answers_to_both(tmp_path, trained):
    description = json.loads(trained["byte_bpe"].model.decode().replace("[MASK]", "<mask>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    tokens = tokenizer.from_model(tmp_path / "tokenizer.json")
    one, other = tokens.encode_masked(["the [MASK], and more", "the <mask>, and more"])
    assert one == other and one.count(tokens.mask_id) == 1
