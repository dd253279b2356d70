"""Tokenizer files of transformers in both directions: writes what `AutoTokenizer` opens, and reads it."""

import json
from pathlib import Path
from typing import Any

from bertjax import untrusted
from bertjax.data.tokenizer import Tokenizer, byte_bpe, sentencepiece, tokenizer_json, wordpiece
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.errors import UserError, quoted, reason
from bertjax.interop import published_sentencepiece, sentencepiece_json
from bertjax.interop.template import template

MODEL, VOCAB, CONFIG, SYMBOLS = "tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"
_SENTENCEPIECE, _BYTE_VOCAB, _MERGES = "tokenizer.model", "vocab.json", "merges.txt"
# The class of transformers that uses a tokenizer.json unchanged; BERT's own class rewrites the normalizer.
_CLASS = "PreTrainedTokenizerFast"
_BERT_CLASSES = tuple(
    f"{family}Tokenizer{kind}" for family in ("Bert", "DistilBert", "Electra") for kind in ("", "Fast")
)


def write(folder: Path, tokenizer: Tokenizer, longest: int, segments: int = 2) -> list[str]:
    """Write the files that `AutoTokenizer` reads; it gives the same ids, between [CLS] and [SEP].

    Args:
      folder: an existing folder.
      longest: tokens in the longest example that the encoder takes.
      segments: number of segments of the encoder; with two or more, a second sequence is in the second segment.

    Returns:
      The names of the files.

    Raises:
      UserError: it has two vocabularies, or see `sentencepiece_json.describe`.
    """
    if isinstance(tokenizer, MixedTokenizer):
        raise UserError(
            "the tokenizer draws one of two vocabularies for each word, which the tokenizers library cannot do; open "
            "the model with bertjax.load, or train a student of it"
        )
    symbols = _symbols(tokenizer)
    settings = {
        "tokenizer_class": _CLASS,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        **symbols,
    }
    files = {}
    if isinstance(tokenizer, SentencePieceTokenizer):
        description = sentencepiece_json.describe(tokenizer)
        files[_SENTENCEPIECE] = tokenizer.model
    else:
        description = json.loads(tokenizer.model)
        if description["model"]["type"] == "WordPiece":
            lines = (tokenizer.piece(i) + "\n" for i in range(tokenizer.vocab_size))
            files[VOCAB] = "".join(lines).encode()
            settings |= _bert_settings(description)
        else:
            # Otherwise transformers replaces the setting of the description by False.
            settings["add_prefix_space"] = (description["pre_tokenizer"] or {}).get("add_prefix_space", False)
            for symbol in description["added_tokens"]:
                symbol["lstrip"] = symbol["id"] == tokenizer.mask_id  # the space before it belongs to the masked word
    cls, sep = ((tokenizer.piece(number), number) for number in (tokenizer.cls_id, tokenizer.sep_id))
    description["post_processor"] = template(cls, sep, int(segments > 1), tokenizer.cls_last)
    if tokenizer.cls_last:  # the summary of a row is its last column
        settings["padding_side"] = "left"
    files |= {MODEL: _json(description, indent=None), CONFIG: _json(settings), SYMBOLS: _json(symbols)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def read(folder: Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint.

    It is read from a SentencePiece `tokenizer.model`, a `tokenizer.json`, or older files of BERT (`vocab.txt`), RoBERTa
    (`vocab.json` and `merges.txt`), ALBERT and XLNet (`spiece.model`), XLM-R and CamemBERT (`sentencepiece.bpe.model`).

    Raises:
      UserError: none of these files exists, or bertjax cannot read them.
    """
    try:
        return _read(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"the tokenizer in {folder} cannot be read ({quoted(error)}); download it again") from error


def _read(folder: Path) -> Tokenizer:
    settings = load_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    description = load_json(folder / MODEL) if (folder / MODEL).exists() else {}
    if (folder / _SENTENCEPIECE).exists():
        tokenizer = sentencepiece.from_file(folder / _SENTENCEPIECE)
        steps = (description.get("normalizer") or {}).get("normalizers", [])
        rules = tokenizer.description.normalizer_spec.precompiled_charsmap
        ours = steps[:1] == [{"type": "NFC"}] and not rules  # as `sentencepiece_json` writes it
        return SentencePieceTokenizer(tokenizer.model, "nfc") if ours else tokenizer
    if description:
        return _from_description(description, settings, str(folder / MODEL))
    if (folder / _BYTE_VOCAB).exists() and (folder / _MERGES).exists():
        return byte_bpe.from_files(folder / _BYTE_VOCAB, folder / _MERGES, bool(settings.get("add_prefix_space")))
    for name in (published_sentencepiece.SPIECE, published_sentencepiece.BPE):
        if (folder / name).exists():
            family = load_json(folder / "config.json").get("model_type")
            description = published_sentencepiece.describe(folder / name, family, settings)
            return tokenizer_json.from_json(_json(description, indent=None), str(folder / name))
    if (folder / VOCAB).exists():
        tokenizer = wordpiece.from_vocab(folder / VOCAB, settings.get("do_lower_case", True))
        description = tokenizer.description
        description["normalizer"]["normalizers"][-1] |= _normalization(settings)
        return tokenizer_json.from_json(_json(description, indent=None), str(folder / VOCAB))
    raise UserError(
        f"{folder} holds no tokenizer ({MODEL}, {VOCAB}, {_BYTE_VOCAB} with {_MERGES}, {_SENTENCEPIECE}, "
        f"{published_sentencepiece.SPIECE} or {published_sentencepiece.BPE}); download it beside the weights"
    )


def _from_description(description: dict, settings: dict, path: str) -> HuggingFaceTokenizer:
    """Return the tokenizer of a description without padding and, unless [CLS] comes last, without its template."""
    normalizer = description.get("normalizer")
    if settings.get("tokenizer_class", _BERT_CLASSES[0]) in _BERT_CLASSES and (normalizer or {}).get("type") == (
        "BertNormalizer"
    ):  # the class replaces the settings of the description by its own
        normalizer |= _normalization(settings)
    splitter = description.get("pre_tokenizer")
    if splitter and "add_prefix_space" in splitter and splitter["type"] == "ByteLevel":
        splitter["add_prefix_space"] = bool(settings.get("add_prefix_space"))  # so does every class of transformers
    description["truncation"] = description["padding"] = None
    for symbol in description.get("added_tokens", []):
        symbol["lstrip"] = symbol["rstrip"] = False
    tokenizer = tokenizer_json.from_json(_json(description, indent=None), path)
    if tokenizer.cls_last:  # which its template says
        return tokenizer
    return tokenizer_json.from_json(_json(description | {"post_processor": None}, indent=None), path)


def _normalization(settings: dict) -> dict[str, bool]:
    """Return how BERT's tokenizer classes normalize a text; by default, accents are removed if it lowercases."""
    lowercase = settings.get("do_lower_case", True)
    accents = settings.get("strip_accents")
    return {
        "lowercase": lowercase,
        "strip_accents": lowercase if accents is None else accents,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
    }


def _symbols(tokenizer: Tokenizer) -> dict[str, str]:
    names = ("unk", "sep", "pad", "cls", "mask")
    return {f"{name}_token": tokenizer.piece(getattr(tokenizer, f"{name}_id")) for name in names}


def _bert_settings(description: dict) -> dict[str, Any]:
    """Return the settings with which `BertTokenizer` reads `vocab.txt` in the same way."""
    normalizer = description["normalizer"]
    steps = [step for step in normalizer.get("normalizers", [normalizer]) if step["type"] == "BertNormalizer"]
    return {
        key: step[name]
        for step in steps
        for key, name in (
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        )
    }


def load_json(path: Path) -> dict[str, Any]:
    """Return settings by name; raises UserError if the file holds none."""
    try:
        settings = untrusted.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable JSON ({reason(error)}); download it again") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds a {type(settings).__name__}, not settings by name; download it again")
    return settings


def _json(value: dict, indent: int | None = 2) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=False).encode()
