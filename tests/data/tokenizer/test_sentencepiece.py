"""SentencePiece: settings that only it has, and models that were trained elsewhere."""

import io
import re

import pytest
import sentencepiece

from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer import SPECIALS
from bertjax.data.tokenizer_config import SENTENCEPIECE_KINDS, TokenizerConfig
from bertjax.runtime.errors import UserError


def existing_model(path, sentences, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=300, minloglevel=3, **options
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.mark.parametrize("kind", SENTENCEPIECE_KINDS)
def test_spelling_of_a_special_symbol_is_ordinary_text_without_bytes(sentences, kind):
    corpus = [*sentences, *(" ".join(SPECIALS) for _ in range(300))]
    tokens = tokenizer.train(corpus, TokenizerConfig(kind=kind, vocab_size=500, byte_fallback=False))
    assert tokens.byte_ids == frozenset()
    for ids in tokens.encode([*SPECIALS, "<0x41>"]):
        assert not (tokens.special_ids - {tokens.unk_id}) & set(ids)


def test_existing_model_keeps_its_ids(tmp_path, sentences):
    options = {"pad_id": 3, "pad_piece": "[PAD]", "control_symbols": ["[MASK]", "[CLS]", "[SEP]"]}
    tokens = tokenizer.from_model(existing_model(tmp_path / "m.model", sentences, **options))
    assert (tokens.unk_id, tokens.pad_id, tokens.mask_id, tokens.cls_id, tokens.sep_id) == (0, 3, 4, 5, 6)
    assert tokens.decode(tokens.encode(["a word"])[0]) == "a word"
    path = existing_model(tmp_path / "m.model", sentences, control_symbols=["[CLS]"], user_defined_symbols=["[MASK]"])
    with pytest.raises(UserError, match=r"has no control symbols \[PAD\], \[SEP\], \[MASK\];"):
        tokenizer.from_model(path)


# What a token is if it is a word by itself, written for the text and not for the pieces.
PUNCTUATION = re.compile(r"(?!['\u2019]\Z)(?:[^\w\s]|_)+")


@pytest.mark.parametrize("corpus, kind", [("embedded:en", "unigram"), ("embedded:ko", "bpe")])
def test_words_start_after_a_space_and_at_punctuation(corpus, kind):
    texts = [line for document in list(documents(corpus, "text"))[::20] for line in document.text.splitlines() if line]
    tokens = tokenizer.train(texts, TokenizerConfig(kind=kind, vocab_size=2400))
    count, punctuation, apostrophes = 0, 0, 0
    for text, (ids, spans) in zip(texts, tokens.encode_with_offsets(texts)):
        after_space = False
        for token, (start, stop) in zip(ids, spans.tolist()):
            is_space, is_punctuation = start == stop, PUNCTUATION.fullmatch(text, start, stop) is not None
            opens = is_space or (not after_space and (start == 0 or text[start - 1].isspace()))
            is_chinese = "\u4e00" <= text[start : start + 1] <= "\u9fff"  # Hanja of the Korean text
            if token not in tokens.byte_ids:  # which cannot be told from the text
                expected = opens or is_punctuation or is_chinese
                assert (token not in tokens.continuation_ids) == expected, (text, start, stop)
                apostrophes += not opens and text[start:stop] in ("'", "\u2019")
            count, punctuation, after_space = count + 1, punctuation + (is_punctuation and not opens), is_space
    # Without this rule they were all parts of the words before them.
    assert 0.03 < punctuation / count < 0.2 and apostrophes
