"""[MASK] in a text becomes the symbol, and its neighbors have the ids that they have around a masked piece."""

import json
import random

import pytest

from bertjax.data import tokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS


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
