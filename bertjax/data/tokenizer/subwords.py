"""Train WordPiece and byte-pair encoding over bytes, and read the vocabulary files of both.

WordPiece (Devlin et al. 2019, arXiv 1810.04805, section 3): longest match first, from left to right. Words are split at
white space and punctuation, and around every CJK ideograph, but not around Hangul. A word with a character outside the
vocabulary, or with more than 100 characters, becomes one [UNK].

Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes (GPT-2, Radford et al. 2019) has no [UNK].
"""

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path

from bertjax.data.tokenizer import tokenizer_json, tokenizers_library
from bertjax.data.tokenizer.base import SPECIALS
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer_config import TokenizerConfig, kept_characters
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted

PREFIX = "##"  # marks a piece inside a word
MAX_WORD = 100


def train_wordpiece(sentences: Iterable[str], config: TokenizerConfig) -> HuggingFaceTokenizer:
    """Train a vocabulary by merging the most frequent pairs, as the tokenizers library does for WordPiece.

    Every character in the alphabet is a piece at the start of a word and, if it can occur there, inside one. bertjax
    orders the inner pieces itself: the library's order depends on a hash table, and the merges depend on that order.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or their characters do not fit into it.
    """
    sentences = list(sentences)
    normalizers = [{"type": config.normalizer.upper()}, _bert(config.lowercase)]
    if config.lowercase:
        normalizers.append({"type": "NFC"})  # removing accents goes through NFD, which splits Hangul syllables
    untrained = _describe_wordpiece({}, normalizers, ())
    library = tokenizers_library.library()
    pipeline = library.Tokenizer.from_str(untrained.decode("utf-8"))
    normalize = pipeline.normalizer.normalize_str
    kept = set(normalize(kept_characters(config))) - {" "}
    alphabet = sorted({*_alphabet(map(normalize, sentences), config.character_coverage), *kept})
    # Normalized first, because the normalizer puts the spaces around ideographs. They never continue a word, and a ##
    # piece for each would take half of a Chinese vocabulary.
    continuing = [c for c in alphabet if len(pipeline.pre_tokenizer.pre_tokenize_str(normalize(f"a{c}"))) == 1]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=tokenizers_library.MIN_FREQUENCY,
        special_tokens=[*SPECIALS, *alphabet, *(PREFIX + c for c in continuing)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    model = tokenizers_library.train(sentences, untrained, trainer, config.vocab_size)
    return HuggingFaceTokenizer(_describe_wordpiece(model["vocab"], normalizers, SPECIALS))


def from_vocab(path: Path, lowercase: bool) -> HuggingFaceTokenizer:
    """Read BERT's `vocab.txt`: one piece per line, with the line number as id.

    Texts are normalized with NFC and then as in BERT. `lowercase` also removes accents and, as in BERT, splits Hangul
    syllables into letters.

    Raises:
      UserError: the file cannot be read, or see `tokenizers_library.checked`.
    """
    refused = f"data.tokenizer.model={str(path)!r}"
    try:
        description = describe_vocab(path, lowercase, {})
    except (OSError, ValueError) as error:
        raise UserError(f"{refused} is not a readable vocab.txt ({error}); name another") from None
    return tokenizers_library.checked(HuggingFaceTokenizer(description), refused)


def describe_vocab(path: Path, lowercase: bool, roles: Mapping[str, str]) -> bytes:
    """Build the `tokenizer.json` for a `vocab.txt`, see `from_vocab`.

    Args:
      roles: {name of a symbol in BERT: its piece, if it has another one}. Then its name is text, as in MPNet.

    Raises:
      OSError, ValueError: the file cannot be read.
    """
    # Editors add a byte order mark, and tables spaces at the ends of lines; transformers 5 reads both.
    lines = untrusted.read_text(path).removeprefix("\ufeff").rstrip("\r\n").split("\n")
    vocab = {piece.rstrip() or piece: line for line, piece in enumerate(lines)}
    names = (name for name in tokenizers_library.EQUIVALENTS if roles.get(name, name) == name)
    symbols = [name for name in names if name in vocab]
    return _describe_wordpiece(vocab, [{"type": "NFC"}, _bert(lowercase)], symbols)


def _alphabet(normalized: Iterable[str], coverage: float) -> list[str]:
    """Return the most frequent characters that together cover a share of the text, white space aside."""
    counts = collections.Counter()
    for sentence in normalized:
        counts.update(sentence)
    counts = {character: count for character, count in counts.items() if not character.isspace()}
    remaining, kept = coverage * sum(counts.values()), []
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if remaining <= 0:
            break
        kept.append(character)
        remaining -= counts[character]
    return kept


def _bert(lowercase: bool) -> dict:
    flags = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": lowercase, "lowercase": lowercase}
    return {"type": "BertNormalizer", **flags}


def _describe_wordpiece(vocab: dict[str, int], normalizers: list[dict], symbols: Iterable[str]) -> bytes:
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": PREFIX,
        "max_input_chars_per_word": MAX_WORD,
        "vocab": vocab,
    }
    decoder = {"type": "WordPiece", "prefix": PREFIX, "cleanup": False}
    return tokenizer_json.describe(model, normalizers, {"type": "BertPreTokenizer"}, decoder, symbols)


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


def train_byte_bpe(sentences: Iterable[str], config: TokenizerConfig) -> HuggingFaceTokenizer:
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
    untrained = _describe_byte_bpe({}, [], normalizers, (), _SPLITTER)
    model = tokenizers_library.train(sentences, untrained, trainer, config.vocab_size)
    return HuggingFaceTokenizer(_describe_byte_bpe(model["vocab"], model["merges"], normalizers, SPECIALS, _SPLITTER))


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
    return _describe_byte_bpe(ids, pairs, [], symbols, BYTE_LEVEL | {"add_prefix_space": add_prefix_space})


def _describe_byte_bpe(
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
