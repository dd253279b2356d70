"""Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes (GPT-2, Radford et al. 2019): no [UNK]."""

from collections.abc import Iterable
from pathlib import Path

from bertjax.data.tokenizer import tokenizer_json, tokenizers_library
from bertjax.data.tokenizer.base import SPECIALS
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
# GPT-2's words, except that letters keep their marks. GPT-2's own expression (`use_regex`) allows only letters (\p{L}),
# so a Hindi, Tamil or Thai vowel sign or an Arabic point ends a word, and no piece can span one: Hindi took 4 tokens
# per word. English has no marks, so its words are the same as GPT-2's.
_WORDS = "|".join(
    (
        r"'(?:[sdmt]|ll|ve|re)",
        r" ?[\p{L}\p{M}][\p{L}\p{M}\x{200c}\x{200d}]*",  # joiners are within words of Persian and Sinhala
        r" ?\p{N}+",
        r" ?[^\s\p{L}\p{N}\p{M}][^\s\p{L}\p{N}]*",  # emoji with their joiners and variation selectors
        r"\s+(?!\S)|\s+",  # leaves the last space of a run to the next word
    )
)
_SPLITTER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False},
        BYTE_LEVEL | {"add_prefix_space": False, "use_regex": False},
    ],
}


def train(sentences: Iterable[str], config: TokenizerConfig) -> HuggingFaceTokenizer:
    """Train merges on top of the 256 bytes.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or the bytes do not fit into it.
    """
    normalizers = [{"type": config.normalizer.upper()}, *tokenizers_library.PREFIX_SPACE]
    library = tokenizers_library.library()
    trainer = library.trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=tokenizers_library.MIN_FREQUENCY,
        special_tokens=list(SPECIALS),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    untrained = _describe({}, [], normalizers, (), _SPLITTER)
    model = tokenizers_library.train(sentences, untrained, trainer, config.vocab_size)
    return HuggingFaceTokenizer(_describe(model["vocab"], model["merges"], normalizers, SPECIALS, _SPLITTER))


def describe_files(vocab: Path, merges: Path, add_prefix_space: bool) -> bytes:
    """Build a `tokenizer.json` from RoBERTa's `vocab.json` (ids by piece) and `merges.txt` (pairs by priority).

    Args:
      add_prefix_space: whether to add a space before a text's first word; off in the published tokenizers.

    Raises:
      UserError: the pieces are not bytes.
      OSError, ValueError, TypeError: a file cannot be read.
    """
    ids = untrusted.read_json(vocab)
    lines = untrusted.read_text(merges).split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if odd := next((piece for piece in ids if piece.endswith("</w>")), None):
        kind = f"pieces that end a word with </w>, such as {quoted(odd)}, and bertjax reads BPE of bytes"
        raise UserError(f"{vocab} has {kind}; save the tokenizer as another kind, or train one here")
    symbols = [symbol for names in tokenizers_library.EQUIVALENTS.values() for symbol in names if symbol in ids]
    return _describe(ids, pairs, [], symbols, BYTE_LEVEL | {"add_prefix_space": add_prefix_space})


def _describe(
    vocab: dict[str, int], merges: list, normalizers: list[dict], symbols: Iterable[str], splitter: dict
) -> bytes:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return tokenizer_json.describe(model, normalizers, splitter, BYTE_LEVEL, symbols)
