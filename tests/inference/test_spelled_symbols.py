"""Texts that spell out special symbols have the same tokens in an ONNX file as in the run."""

import itertools
import json

import pytest

from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer import tokenizer_json
from bertjax.data.tokenizer.layout import layout_of
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig
from bertjax.inference import onnx as engine
from bertjax.interop import onnx, tokenizers
from tests.interop import models, published

# Every spelling of a symbol, alone, inside of a word, twice, and beside characters without a piece.
NAMES = ("PAD", "UNK", "SEP", "CLS", "MASK", "BOS", "EOS")
SYMBOLS = [f"[{name}]" for name in NAMES] + [f"<{name.lower()}>" for name in NAMES] + ["<s>", "</s>", "<0x41>"]
TEXTS = [form.replace("?", symbol) for symbol in SYMBOLS for form in ("?", "a ? b", "a?b", "??", "漢?\u0e01 ?", " ? ")]
TEXTS += ["the 漢 \u0e01x same", "q漢q", "[MASK"]
FOREIGN = {"albert": "spiece.model", "xlnet": "spiece.model", "xlm-roberta": "sentencepiece.bpe.model"}

JSON = {"modernbert": published.byte_bpe, "mmbert": published.gemma}


def made(kind, folder):
    """Return a tokenizer of a kind."""
    if kind in JSON:
        return tokenizer_json.from_json(JSON[kind](published.lines(300), 700), kind)
    if kind in FOREIGN:
        published.train(kind, folder / FOREIGN[kind], published.lines(600))
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        return tokenizers.read(folder).tokenizer
    texts = [document.text for document in itertools.islice(documents("embedded:en", "text"), 3)]
    return tokenizer.train(texts, TokenizerConfig(kind=kind, vocab_size=700))


@pytest.mark.parametrize("kind", [*SENTENCEPIECE_KINDS, *HUGGINGFACE_KINDS, *FOREIGN, *JSON])
def test_spelled_symbols_are_text(kind, tmp_path):
    tokens = made(kind, tmp_path)
    export = models.fine_tuned("classification", tokens)
    folder = tmp_path / "hf"
    folder.mkdir()
    tokenizers.write(folder, tokens, longest=64)
    described = json.dumps(onnx.tokenizer_of(export, folder), ensure_ascii=False)
    theirs = engine.TextTokenizer(described, layout_of(json.loads(described)["post_processor"]), tokens.pad_id)
    expected = tokens.encode(TEXTS)
    assert theirs.encode(TEXTS) == expected
    for name in ("cls_id", "sep_id", "cls_last", "pair_separators", "vocab_size"):
        assert getattr(theirs, name) == getattr(tokens, name), name
    symbols = tokens.special_ids - {tokens.unk_id}  # a character without a piece is still unknown
    assert not symbols.intersection(itertools.chain(*expected))
