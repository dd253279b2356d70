"""Tokenizer files of transformers in both directions: writes what `AutoTokenizer` opens, and reads it."""

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertjax import untrusted
from bertjax.data.tokenizer import Tokenizer, byte_bpe, sentencepiece, tokenizer_json, wordpiece
from bertjax.data.tokenizer import layout as layouts
from bertjax.data.tokenizer.layout import Layout, layout_of, template
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import ROLES, HuggingFaceTokenizer
from bertjax.errors import UserError, quoted, reason
from bertjax.interop import (
    added_tokens,
    foreign_settings,
    published_sentencepiece,
    sentencepiece_json,
    tokenizer_classes,
)

MODEL, VOCAB, CONFIG, SYMBOLS = "tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
_SENTENCEPIECE, _BYTE_VOCAB, _MERGES = "tokenizer.model", "vocab.json", "merges.txt"
# The class of transformers that uses a tokenizer.json unchanged; BERT's own class rewrites the normalizer.
_CLASS = "PreTrainedTokenizerFast"


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
        description.pop(ROLES, None)  # which are in `symbols`
        if description["model"]["type"] == "WordPiece":
            lines = (tokenizer.piece(i) + "\n" for i in range(tokenizer.vocab_size))
            files[VOCAB] = "".join(lines).encode()
            settings |= _bert_settings(description)
        else:
            # Otherwise transformers replaces the setting of the description by False.
            settings["add_prefix_space"] = (description["pre_tokenizer"] or {}).get("add_prefix_space", False)
            for symbol in description["added_tokens"]:
                if symbol["id"] == tokenizer.mask_id:
                    symbol["lstrip"] = True  # the space before it belongs to the masked word
    cls, sep = ((tokenizer.piece(number), number) for number in (tokenizer.cls_id, tokenizer.sep_id))
    description["post_processor"] = template(cls, sep, int(segments > 1), tokenizer.cls_last, tokenizer.pair_separators)
    if tokenizer.cls_last:  # the summary of a row is its last column
        settings["padding_side"] = "left"
    files |= {MODEL: _json(description, indent=None), CONFIG: _json(settings), SYMBOLS: _json(symbols)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def read(folder: Path, lowercase: bool = False) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer of a checkpoint, and notes about its files, one line each.

    It is read from a SentencePiece `tokenizer.model`, a `tokenizer.json`, or older files of BERT (`vocab.txt`), RoBERTa
    (`vocab.json` and `merges.txt`), ALBERT and XLNet (`spiece.model`), XLM-R and CamemBERT (`sentencepiece.bpe.model`).

    Args:
      folder: the checkpoint.
      lowercase: whether texts are in lower case before anything else.

    Raises:
      UserError: none of these files exists, or bertjax cannot read them; or see `tokenizer_classes.check`.
    """
    try:
        return _read(folder, lowercase)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"the tokenizer in {folder} cannot be read ({quoted(error)}); download it again") from error


def _read(folder: Path, lowercase: bool) -> tuple[Tokenizer, list[str]]:
    settings, symbols, ids = (_if_there(folder / name) for name in (CONFIG, SYMBOLS, ADDED))
    config, description = _if_there(folder / "config.json"), _if_there(folder / MODEL)
    if (folder / _SENTENCEPIECE).exists():
        if lowercase:
            raise UserError(
                f"{folder} has do_lower_case=True, and {_SENTENCEPIECE} normalizes by itself; train another"
            )
        tokenizer = _read_sentencepiece(folder, description, settings, symbols, ids)
        return tokenizer, foreign_settings.notes_of_tokenizer(settings, symbols)
    is_json, kind = bool(description), _kind_of(folder, bool(description))
    tokenizer_classes.check(folder, settings, config, kind)
    class_name, notes = (
        tokenizer_classes.name_of(settings, config),
        foreign_settings.notes_of_tokenizer(settings, symbols),
    )
    if not is_json:
        description, more = _described(folder, kind, config, settings)
        notes += more
    files = added_tokens.declared(settings, symbols, ids)
    description, more = added_tokens.complete(description, files, is_json, str(folder))
    notes += [*more, *(tokenizer_classes.note(settings, config) if is_json else ())]
    layout = layout_of(description.get("post_processor"))
    if not layout and is_json:
        if spelled := layouts.spelled(description.get("post_processor")):
            raise UserError(
                f"{folder / MODEL} lays out a text as {quoted(spelled)}, and bertjax as [CLS] A [SEP] or "
                "A [SEP] [CLS]; correct its post_processor"
            )
        notes.append(f"{MODEL} has no template of special tokens: texts are laid out as [CLS] A [SEP]")
    separators = layout.separators if layout else 1 + (not is_json and tokenizer_classes.doubles_separator(class_name))
    if tokenizer_classes.rewrites_normalizer(class_name) and is_json:
        _as_bert_normalizes(description, settings)
    if lowercase:
        own = [description["normalizer"]] if description.get("normalizer") else []
        description["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}
    splitter = description.get("pre_tokenizer")
    if splitter and "add_prefix_space" in splitter and splitter["type"] == "ByteLevel":
        splitter["add_prefix_space"] = bool(settings.get("add_prefix_space"))  # so does every class of transformers
    return _laid_out(description, layout, separators, str(folder / kind)), notes


def _if_there(path: Path) -> dict[str, Any]:
    return load_json(path) if path.exists() else {}


def _kind_of(folder: Path, is_json: bool) -> str:
    """Return the name of the file that has the vocabulary."""
    kinds = (published_sentencepiece.SPIECE, published_sentencepiece.BPE, VOCAB)
    if is_json:
        return MODEL
    if (folder / _BYTE_VOCAB).exists() and (folder / _MERGES).exists():
        return _BYTE_VOCAB
    for name in kinds:
        if (folder / name).exists():
            return name
    raise UserError(
        f"{folder} holds no tokenizer ({MODEL}, {VOCAB}, {_BYTE_VOCAB} with {_MERGES}, {_SENTENCEPIECE}, "
        f"{published_sentencepiece.SPIECE} or {published_sentencepiece.BPE}); download it beside the weights"
    )


def _described(folder: Path, kind: str, config: dict, settings: dict) -> tuple[dict[str, Any], list[str]]:
    """Return the `tokenizer.json` of older files, and notes."""
    if kind == _BYTE_VOCAB:
        prefix = bool(settings.get("add_prefix_space"))
        return json.loads(byte_bpe.describe_files(folder / kind, folder / _MERGES, prefix)), []
    if kind != VOCAB:
        return published_sentencepiece.describe(folder / kind, config.get("model_type"), settings), []
    description = json.loads(wordpiece.describe_vocab(folder / VOCAB, settings.get("do_lower_case", True)))
    pieces, normalizer = description["model"]["vocab"], description["normalizer"]["normalizers"][-1]
    if not any(piece.startswith(wordpiece.PREFIX) for piece in pieces) and any(WORD_START in p for p in pieces):
        raise UserError(
            f"{folder / VOCAB} has pieces of SentencePiece ({WORD_START}), as that of KoBertTokenizer, and is not "
            "BERT's; use a checkpoint with a tokenizer.json"
        )
    normalizer |= _normalization(settings)
    return description, [] if "do_lower_case" in settings else _note_on_case(pieces)


def _note_on_case(pieces: Iterable[str]) -> list[str]:
    """Return a note if lower case, which is BERT's default, leaves many pieces unused."""
    words = [piece for piece in pieces if piece.isalpha()]
    changed = [word for word in words if any(map(_is_changed, word))]
    if len(changed) < 0.1 * len(words) or not changed:
        return []
    return [
        f"{CONFIG} does not set do_lower_case, so texts lose capitals and accents, as in BertTokenizer; "
        f"{len(changed):,} of {len(words):,} words of {VOCAB} have them ({quoted(changed[0])}): set it to false if the "
        "model is cased"
    ]


def _is_changed(letter: str) -> bool:
    return letter != unicodedata.normalize("NFD", letter.lower())[0]


def _as_bert_normalizes(description: dict, settings: dict) -> None:
    """Replace the settings of a normalizer by those of the class, as BERT's classes do."""
    normalizer = description.get("normalizer")
    if (normalizer or {}).get("type") == "BertNormalizer":
        normalizer |= _normalization(settings)


def _read_sentencepiece(folder: Path, description: dict, settings: dict, symbols: dict, ids: dict) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model that bertjax or a run of it has trained."""
    tokenizer = sentencepiece.from_file(folder / _SENTENCEPIECE)
    names = {"[UNK]": "unk", "[SEP]": "sep", "[PAD]": "pad", "[CLS]": "cls", "[MASK]": "mask"}
    for symbol, piece in added_tokens.declared(settings, symbols, ids).roles.items():
        if piece != (own := tokenizer.piece(getattr(tokenizer, f"{names[symbol]}_id"))):
            raise UserError(
                f"{folder} declares {quoted(piece)} as its {symbol}, and {_SENTENCEPIECE} has {quoted(own)}; get the "
                "files of one tokenizer"
            )
    steps = (description.get("normalizer") or {}).get("normalizers", [])
    rules = tokenizer.description.normalizer_spec.precompiled_charsmap
    ours = steps[:1] == [{"type": "NFC"}] and not rules  # as `sentencepiece_json` writes it
    return SentencePieceTokenizer(tokenizer.model, "nfc") if ours else tokenizer


def _laid_out(description: dict, layout: Layout | None, separators: int, path: str) -> HuggingFaceTokenizer:
    """Return the tokenizer of a description without padding, and with a template only if it is not BERT's."""
    cls_last = layout is not None and layout.cls_last
    description |= {"truncation": None, "padding": None, "post_processor": None}
    tokenizer = tokenizer_json.from_json(_json(description, indent=None), path)
    for symbol in description.get("added_tokens", []):
        if symbol["content"] in tokenizer.text_symbols:
            symbol["lstrip"] = symbol["rstrip"] = False
    if cls_last or separators > 1:
        cls, sep = ((tokenizer.piece(number), number) for number in (tokenizer.cls_id, tokenizer.sep_id))
        description["post_processor"] = template(cls, sep, int(cls_last), cls_last, separators)
    return tokenizer_json.from_json(_json(description, indent=None), path)


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
