"""Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes (GPT-2, Radford et al. 2019): no [UNK]."""

from collections.abc import Iterable
from pathlib import Path

from bertjax import untrusted
from bertjax.data.tokenizer import tokenizers_library
from bertjax.data.tokenizer.base import SPECIALS
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.errors import UserError, quoted

# With a space before it, the first word of a sentence has the same pieces as inside a sentence.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def train(sentences: Iterable[str], config: TokenizerConfig) -> HuggingFaceTokenizer:
    """Train the merges on top of the 256 bytes.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or the bytes do not fit into it.
    """
    normalizers = [{"type": config.normalizer.upper()}]
    library = tokenizers_library.library()
    trainer = library.trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=tokenizers_library.MIN_FREQUENCY,
        special_tokens=list(SPECIALS),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model = tokenizers_library.train(sentences, _describe({}, [], normalizers, ()), trainer, config.vocab_size)
    return HuggingFaceTokenizer(_describe(model["vocab"], model["merges"], normalizers, SPECIALS))


def describe_files(vocab: Path, merges: Path, add_prefix_space: bool) -> bytes:
    """Return the `tokenizer.json` of RoBERTa's `vocab.json` and `merges.txt`.

    These have ids by piece, and one pair per line in order of priority.

    Args:
      add_prefix_space: whether a text gets a space before its first word; not so as published.

    Raises:
      UserError: the pieces are not bytes.
      OSError, ValueError, TypeError: a file cannot be read.
    """
    ids = untrusted.read_json(vocab)
    lines = untrusted.read_text(merges).split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if odd := next((piece for piece in ids if piece.endswith("</w>")), None):
        raise UserError(
            f"{vocab} has pieces of characters that end a word with </w>, such as {quoted(odd)}, and bertjax reads BPE "
            "of bytes; save the tokenizer as another kind, or train one here"
        )
    symbols = [symbol for names in tokenizers_library.EQUIVALENTS.values() for symbol in names if symbol in ids]
    return _describe(ids, pairs, [], symbols, add_prefix_space)


def _describe(
    vocab: dict[str, int], merges: list, normalizers: list[dict], symbols: Iterable[str], add_prefix_space: bool = True
) -> bytes:
    byte_level = BYTE_LEVEL | {"add_prefix_space": add_prefix_space}
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
    return tokenizers_library.describe(model, normalizers, byte_level, byte_level, symbols)
