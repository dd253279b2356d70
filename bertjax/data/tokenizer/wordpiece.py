"""WordPiece (Devlin et al. 2019, arXiv 1810.04805, section 3): longest match first, from left to right.

Words are split at white space and punctuation, and around every CJK ideograph, but not around Hangul. A word with a
character outside the vocabulary, or with more than 100 characters, becomes one [UNK].
"""

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path

from bertjax.data.tokenizer import tokenizer_json, tokenizers_library
from bertjax.data.tokenizer.base import SPECIALS
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer_config import TokenizerConfig, kept_characters
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError

PREFIX = "##"  # marks a piece inside a word
MAX_WORD = 100


def train(sentences: Iterable[str], config: TokenizerConfig) -> HuggingFaceTokenizer:
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
    untrained = _describe({}, normalizers, ())
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
    return HuggingFaceTokenizer(_describe(model["vocab"], normalizers, SPECIALS))


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
    return _describe(vocab, [{"type": "NFC"}, _bert(lowercase)], symbols)


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


def _describe(vocab: dict[str, int], normalizers: list[dict], symbols: Iterable[str]) -> bytes:
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": PREFIX,
        "max_input_chars_per_word": MAX_WORD,
        "vocab": vocab,
    }
    decoder = {"type": "WordPiece", "prefix": PREFIX, "cleanup": False}
    return tokenizer_json.describe(model, normalizers, {"type": "BertPreTokenizer"}, decoder, symbols)
