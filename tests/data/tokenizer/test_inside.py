"""Words that are encoded one by one, and those around [MASK], have the pieces that they have inside of a text."""

import json
import random

import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.tokenizer.sentencepiece import SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer, _without_prefix_space
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS


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
@given(texts=st.lists(st.text("ab \u00e9\uc11c東", max_size=6), max_size=4), is_spaced=st.booleans())
def test_each_text_has_its_own_ids(tokenizers, name, texts, is_spaced):
    tokens = tokenizers[name]
    encoded = tokens.encode_inside(texts, [is_spaced] * len(texts))
    assert encoded == [tokens.encode_inside([text], [is_spaced])[0] for text in texts]
    if is_spaced:
        assert tokens.encode_flat(texts)[0].tolist() == [token for ids in encoded for token in ids]
    else:
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


@pytest.mark.parametrize("swallows", [True, False])
def test_the_space_before_a_mask_stays_if_the_tokenizer_declares_it(tokenizers, swallows):
    """A byte-level BPE of somebody else, against the library that it was made with."""
    description = tokenizers["byte_bpe without a space"].description
    for token in description["added_tokens"]:
        token["lstrip"] = swallows and token["content"] == "[MASK]"
    model = json.dumps(description).encode()
    theirs, ours = library.Tokenizer.from_str(model.decode()), type(tokenizers["byte_bpe without a space"])(model)
    for text in ("a b [MASK] c", "[MASK] [MASK] a", "a  [MASK] b [MASK]"):
        assert ours.encode_masked([text]) == [theirs.encode(text).ids], text
