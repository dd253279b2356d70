"""Tokenizers with the files, options and special symbols of published checkpoints, trained on a small sample."""

import functools
import itertools
import random
import unicodedata
from pathlib import Path

import sentencepiece

from bertjax.data.sources import documents

# First and last letter of the alphabets beside those of the embedded corpora.
_ALPHABETS = {
    "latin": ("a", "\u024f"),
    "greek": ("\u0370", "\u03ff"),
    "cyrillic": ("\u0400", "\u04ff"),
    "hebrew": ("\u05d0", "\u05ea"),
    "arabic": ("\u0621", "\u064a"),
    "devanagari": ("\u0905", "\u094d"),
    "thai": ("\u0e01", "\u0e4e"),
    "kana": ("\u3041", "\u30ff"),
    "han": ("\u4e00", "\u4eff"),
    "hangul": ("\uac00", "\uacff"),
    "halfwidth": ("\uff01", "\uffdc"),
    "symbols": ("\u2010", "\u214f"),
    "emoji": ("\U0001f300", "\U0001f64f"),
}
_ODD = (
    "  ",
    " ",
    "\u3000",
    "\t",
    "``",
    "''",
    "9,",
    "10,000",
    "(",
    ").",
    "e\u0301",
    "\u200b",
    "\u00a0",
    "\u2581",
    "\u00ad",
)
# As ALBERT and XLNet were trained (google-research/albert README; zihangdai/xlnet README), but for the vocabulary.
_OPTIONS = {
    "albert": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"],
    },
    "xlnet": {
        "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1,
        "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        "user_defined_symbols": ["<eop>", ".", "(", ")", '"', "-", "\u2013", "\u00a3", "\u20ac"],
    },
    "xlm-roberta": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "camembert": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
}  # fmt: skip


@functools.cache
def lines(count: int) -> list[str]:
    """Return lines of several scripts: of the embedded corpora, and drawn from alphabets, white space and signs."""
    draw = random.Random(0)
    texts = itertools.chain.from_iterable(
        document.text.split("\n") for corpus in ("embedded:ko", "embedded:en") for document in documents(corpus, "text")
    )
    stretches = [text.strip()[:300] for text in itertools.islice((text for text in texts if text), 40 * count)]
    drawn = draw.sample(stretches, count // 2)
    while len(drawn) < count:
        words = [_word(draw) for _ in range(draw.randrange(1, 12))]
        line = "".join(word + draw.choice((" ", " ", " ", draw.choice(_ODD))) for word in words)
        drawn.append(unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC")), line))
    return drawn


def _word(draw: random.Random) -> str:
    first, last = _ALPHABETS[draw.choice(sorted(_ALPHABETS))]
    letters = (chr(draw.randint(ord(first), ord(last))) for _ in range(draw.randrange(1, 7)))
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Cn")


def train(family: str, path: Path, text: list[str], vocab_size: int = 3000) -> Path:
    """Write a SentencePiece model as a family publishes it; return its path."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(path.with_suffix("")),
        model_type="unigram",
        vocab_size=vocab_size,
        character_coverage=0.99,
        normalization_rule_name="nmt_nfkc_cf" if family == "albert" else "nmt_nfkc",
        num_threads=4,
        minloglevel=3,
        **_OPTIONS[family],
    )
    path.with_suffix(".vocab").unlink()
    return path
