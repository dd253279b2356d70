"""Tokenizers: one interface over SentencePiece and Hugging Face tokenizers, each library imported on first use."""

from collections.abc import Iterable
from pathlib import Path

from bertjax.data.tokenizer import base, sentencepiece, tokenizer_json
from bertjax.data.tokenizer.base import SPECIALS, Tokenizer
from bertjax.data.tokenizer.sentencepiece import SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.data.tokenizer.unigram import ByteFallbackTokenizer, UnigramTokenizer
from bertjax.data.tokenizer_config import SENTENCEPIECE_KINDS, TokenizerConfig
from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import place_of

__all__ = ["SPECIALS", "Tokenizer", "from_model", "load", "train"]


def train(sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer. Same sentences in the same order give the same bytes on any machine.

    `kind="char"` takes its pieces from the sentences' characters; `vocab_size` is then an upper limit.

    Raises:
      UserError: the sentences cannot fill `config.vocab_size`, or their characters do not fit into it.
    """
    from bertjax.data.tokenizer import subwords  # not needed to load a tokenizer

    if config.kind in SENTENCEPIECE_KINDS:
        return sentencepiece.train(sentences, config)
    if config.kind == "wordpiece":
        return subwords.train_wordpiece(sentences, config)
    return subwords.train_byte_bpe(sentences, config)


def from_model(path: str | Path, lowercase: bool = False) -> Tokenizer:
    """Read an existing tokenizer; it keeps its ids.

    Args:
      path: SentencePiece `.model`, WordPiece `vocab.txt`, Hugging Face `tokenizer.json`, or a folder that `save` wrote.
        All but `vocab.txt` contain their normalization.
      lowercase: lower-case and strip accents, for an uncased model's `vocab.txt`.

    Raises:
      UserError: the file is unreadable, it lacks [PAD], [SEP], [CLS] or [MASK], or `lowercase` has no effect on it.
    """
    place = Path(place_of(path, reads_remote=False))
    if place.suffix == ".txt":
        from bertjax.data.tokenizer import subwords

        return subwords.from_vocab(place, lowercase)
    if lowercase:
        model = f"data.tokenizer.model={str(place)!r}, which has its own normalization"
        raise UserError(f"data.tokenizer.lowercase=True has no effect with {model}; remove it")
    if place.is_dir():
        return load(place)
    if place.suffix == ".json":
        return tokenizer_json.from_file(place)
    return sentencepiece.from_file(place)


def load(folder: Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises:
      UserError: files are missing or altered, or have another format.
    """
    kinds = (HuggingFaceTokenizer, UnigramTokenizer, ByteFallbackTokenizer, SentencePieceTokenizer)
    if (folder / "mixed.json").exists():  # imported only here, because few models have two vocabularies
        from bertjax.data.tokenizer.mixed import MixedTokenizer

        kinds += (MixedTokenizer,)
    return base.load(folder, kinds)
