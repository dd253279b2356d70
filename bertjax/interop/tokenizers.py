"""Tokenizer files of transformers, read and written."""

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.tokenizer import Tokenizer, sentencepiece, subwords, tokenizer_json
from bertjax.data.tokenizer import layout as layouts
from bertjax.data.tokenizer.layout import Layout, layout_of, template
from bertjax.data.tokenizer.mixed import MixedTokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START, SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import ROLES, HuggingFaceTokenizer
from bertjax.interop import foreign_settings, foreign_tokenizers, sentencepiece_json
from bertjax.interop.foreign_tokenizers import TokenizerClass
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted, reason, shorten

MODEL, VOCAB, CONFIG, SYMBOLS = "tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
_SENTENCEPIECE, _BYTE_VOCAB, _MERGES = "tokenizer.model", "vocab.json", "merges.txt"
# This class runs a tokenizer.json as it is. `BertTokenizerFast` would override the normalizer.
_CLASS = "PreTrainedTokenizerFast"
_BOUNDS = ("bos", "eos")  # symbols that a folder may declare and examples do not use
# {setting of BERT's tokenizers: its name in their normalizer}
_BERT_KEYS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_USED = ("unk", "sep", "pad", "cls", "mask")  # symbols that examples use


class Found(NamedTuple):
    """The tokenizer of a checkpoint.

    Attributes:
      tokenizer: the tokenizer.
      notes: remarks on its files, one line each.
      has_segments: whether it gives the second text of a pair a segment of its own.
    """

    tokenizer: Tokenizer
    notes: list[str]
    has_segments: bool


def write(folder: Path, tokenizer: Tokenizer, longest: int, segments: int = 2) -> list[str]:
    """Write files from which `AutoTokenizer` gives the same ids, laid out with the same special tokens.

    Args:
      folder: an existing folder.
      tokenizer: the tokenizer.
      longest: maximum tokens per example, special tokens included.
      segments: rows of the encoder's segment table; with two or more, the second text of a pair is segment 1.

    Returns:
      The file names.

    Raises:
      UserError: the tokenizer has two vocabularies, or see `sentencepiece_json.describe`.
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
    }
    files = {}
    if isinstance(tokenizer, SentencePieceTokenizer):
        description = sentencepiece_json.describe(tokenizer)
        files[_SENTENCEPIECE] = tokenizer.model
    else:
        description = json.loads(tokenizer.model)
        roles = description.pop(ROLES, {})
        symbols |= {f"{name}_token": roles[f"[{name.upper()}]"] for name in _BOUNDS if f"[{name.upper()}]" in roles}
        if description["model"]["type"] == "WordPiece":
            lines = (tokenizer.piece(i) + "\n" for i in range(tokenizer.vocab_size))
            files[VOCAB] = "".join(lines).encode()
            settings |= _bert_settings(description)
        elif "add_prefix_space" in (splitter := description["pre_tokenizer"] or {}):
            # Without this key transformers sets the pre-tokenizer's to False.
            settings["add_prefix_space"] = splitter["add_prefix_space"]
    cls, sep = ((tokenizer.piece(number), number) for number in (tokenizer.cls_id, tokenizer.sep_id))
    description["post_processor"] = template(cls, sep, int(segments > 1), tokenizer.cls_last, tokenizer.pair_separators)
    if tokenizer.cls_last:  # XLNet's classes pool the last column of a row, which must not be padding
        settings["padding_side"] = "left"
    files |= {MODEL: _json(description, indent=None), CONFIG: _json(settings | symbols), SYMBOLS: _json(symbols)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def read(folder: Path, lowercase: bool = False) -> Found:
    """Read the tokenizer of a checkpoint, with notes and what only the model needs to know.

    The source is a SentencePiece `tokenizer.model`, a `tokenizer.json`, or the older files of BERT (`vocab.txt`),
    RoBERTa (`vocab.json` and `merges.txt`), ALBERT and XLNet (`spiece.model`), XLM-R and CamemBERT
    (`sentencepiece.bpe.model`) or DeBERTa (`spm.model`).

    Args:
      folder: the checkpoint.
      lowercase: whether to lowercase texts first, whatever the tokenizer does.

    Raises:
      UserError: no such file exists, bertjax cannot read it, or see `TokenizerClass.check`.
    """
    try:
        return _read(folder, lowercase)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"the tokenizer in {folder} cannot be read ({quoted(error)}); download it again") from error


def _read(folder: Path, lowercase: bool) -> Found:
    settings, symbols, ids = (load_if_there(folder / name) for name in (CONFIG, SYMBOLS, ADDED))
    config, description = load_if_there(folder / "config.json"), load_if_there(folder / MODEL)
    is_json, own = bool(description), TokenizerClass(settings, config)
    files = foreign_tokenizers.declared(own.with_symbols(), symbols, ids)
    kind = _kind_of(folder, description, files, is_ours=own.is_generic)
    own.check(folder, kind)
    layout = layout_of(description.get("post_processor"))
    # Before any setting is refused that asks for the symbols of such a template, as `add_bos_token` of Llama.
    if kind != _SENTENCEPIECE and not layout and (spelled := layouts.spelled(description.get("post_processor"))):
        raise UserError(f"{folder / MODEL} {layouts.refusal(spelled)}")
    notes = foreign_settings.notes_of_tokenizer(_without_bounds(settings, layout), symbols)
    has_segments = own.gives_segments and (layout is None or layout.segment > 0)
    if kind == _SENTENCEPIECE:
        if lowercase:
            raise UserError(f"{folder} has do_lower_case=True, which {_SENTENCEPIECE} does not follow; train another")
        return Found(_read_sentencepiece(folder, description, files), notes, has_segments)
    if not is_json:
        description, more = _described(folder, kind, own, files.roles)
        notes += more
    description, more = foreign_tokenizers.complete(description, files, is_json, str(folder))
    notes += [*more, *(own.notes if is_json else ())]
    layout = layout_of(description.get("post_processor"))
    if not layout and is_json:
        notes.append(f"{MODEL} has no template: texts are laid out as [CLS] A [SEP], without symbols in transformers 4")
    # Older files have no template: the class lays out pairs.
    separators = layout.separators if layout else 1 if is_json else own.facts.separators
    # Classes of BERT override the normalizer of a tokenizer.json with their own settings.
    if is_json and (own.facts.file == VOCAB or not own.name):
        normalizer = description.get("normalizer")
        if (normalizer or {}).get("type") == "BertNormalizer":
            normalizer |= _normalization(settings)
    if lowercase:
        steps = [description["normalizer"]] if description.get("normalizer") else []
        description["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    splitter = description.get("pre_tokenizer")
    is_byte_level = splitter and "add_prefix_space" in splitter and splitter["type"] == "ByteLevel"
    if is_byte_level and own.name != "TokenizersBackend":  # only that of transformers 5 leaves it as it is
        splitter["add_prefix_space"] = bool(settings.get("add_prefix_space"))
    return Found(_laid_out(description, layout, separators, str(folder / kind)), notes, has_segments)


def _without_bounds(settings: dict[str, Any], layout: Layout | None) -> dict[str, Any]:
    """Leave out `add_bos_token` and `add_eos_token` if they ask for the symbols that the template has, as in mmBERT."""
    if layout is None or layout.cls_last:
        return settings
    pieces = {"add_bos_token": ("bos_token", layout.cls), "add_eos_token": ("eos_token", layout.sep)}

    def is_in_template(key: str) -> bool:
        name, piece = pieces[key]
        value = settings.get(name)
        return settings[key] is True and (value.get("content") if isinstance(value, dict) else value) == piece

    return {key: value for key, value in settings.items() if key not in pieces or not is_in_template(key)}


def _kind_of(folder: Path, description: dict[str, Any], files: foreign_tokenizers.Declared, is_ours: bool) -> str:
    """Return the name of the file with the vocabulary.

    A `tokenizer.model` of ours comes first, since its `tokenizer.json` differs in rare texts. But if tokens were added
    later, as by `add_tokens` and `save_pretrained` of transformers, only the `tokenizer.json` has them.

    Args:
      folder: the checkpoint.
      description: its `tokenizer.json`, empty if there is none.
      files: declarations of the other files.
      is_ours: whether the folder may be written by bertjax; other classes read a `tokenizer.model` in their own ways.
    """
    if (folder / _SENTENCEPIECE).exists() and not description and not is_ours:
        return _SENTENCEPIECE
    if (folder / _SENTENCEPIECE).exists() and is_ours:
        added = {token["content"] for token in description.get("added_tokens") or []} | files.added.keys()
        pieces = {piece.piece for piece in sentencepiece.from_file(folder / _SENTENCEPIECE).description.pieces}
        if not (lacking := sorted(added - pieces)):
            return _SENTENCEPIECE
        if not description or description["model"]["type"] != "Unigram":
            raise UserError(
                f"{folder} has added tokens that its {_SENTENCEPIECE} lacks ({shorten(list(map(quoted, lacking)))}), "
                f"which bertjax reads only from a {MODEL} of the kind Unigram; remove them from its files"
            )
    kinds = (sentencepiece_json.SPIECE, sentencepiece_json.BPE, sentencepiece_json.SPM, VOCAB)
    if description:
        return MODEL
    if (folder / _BYTE_VOCAB).exists() and (folder / _MERGES).exists():
        return _BYTE_VOCAB
    for name in kinds:
        if (folder / name).exists():
            return name
    raise UserError(f"{folder} holds no tokenizer, such as {MODEL} or {VOCAB}; download it beside the weights")


def _described(folder: Path, kind: str, own: TokenizerClass, roles: dict[str, str]) -> tuple[dict, list[str]]:
    """Return a parsed `tokenizer.json` made from older files, and notes."""
    settings = own.settings
    if kind == _BYTE_VOCAB:
        prefix = bool(settings.get("add_prefix_space"))
        return json.loads(subwords.describe_files(folder / kind, folder / _MERGES, prefix)), []
    if kind != VOCAB:
        # The class decides on the order of ids, as in `AutoTokenizer`.
        family = own.facts.family or str(own.config.get("model_type"))
        return sentencepiece_json.describe_published(folder / kind, family, settings), []
    description = json.loads(subwords.describe_vocab(folder / VOCAB, settings.get("do_lower_case", True), roles))
    pieces, normalizer = description["model"]["vocab"], description["normalizer"]["normalizers"][-1]
    if not any(piece.startswith(subwords.PREFIX) for piece in pieces) and any(WORD_START in p for p in pieces):
        raise UserError(
            f"{folder / VOCAB} has pieces of SentencePiece ({WORD_START}), as KoBERT's; use a checkpoint with a {MODEL}"
        )
    normalizer |= _normalization(settings)
    # Unlike `subwords.from_vocab`, the fast classes of transformers do not compose characters (NFC) first. If accents
    # are stripped, which decomposes, that has no effect, and stays: the fingerprints of such tokenizers are in use.
    if not normalizer["strip_accents"]:
        description["normalizer"] = normalizer
    return description, [] if "do_lower_case" in settings else _note_on_case(pieces)


def _note_on_case(pieces: Iterable[str]) -> list[str]:
    """Return a note if lowercasing, BERT's default, would leave many pieces unused."""
    words = [piece for piece in pieces if piece.isalpha()]
    changed = [word for word in words if any(c != unicodedata.normalize("NFD", c.lower())[0] for c in word)]
    if len(changed) < 0.1 * len(words) or not changed:
        return []
    return [
        f"{CONFIG} does not set do_lower_case, so texts lose capitals and accents, as in BertTokenizer; "
        f"{len(changed):,} of {len(words):,} words of {VOCAB} have them ({quoted(changed[0])}): set it to false if the "
        "model is cased"
    ]


def _read_sentencepiece(folder: Path, description: dict, files: foreign_tokenizers.Declared) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.model`, which `write` wrote."""
    tokenizer = sentencepiece.from_file(folder / _SENTENCEPIECE)
    for symbol, piece in files.roles.items():
        if piece != (own := tokenizer.piece(getattr(tokenizer, f"{symbol[1:-1].lower()}_id"))):
            raise UserError(
                f"{folder} declares {quoted(piece)} as {symbol}, {_SENTENCEPIECE} {quoted(own)}; get both again"
            )
    steps = (description.get("normalizer") or {}).get("normalizers", [])
    rules = tokenizer.description.normalizer_spec.precompiled_charsmap
    # A SentencePiece model does not say that texts were composed before; `sentencepiece_json` has written it.
    ours = steps[:1] == [{"type": "NFC"}] and not rules
    return SentencePieceTokenizer(tokenizer.model, "nfc") if ours else tokenizer


def _laid_out(description: dict, layout: Layout | None, separators: int, path: str) -> HuggingFaceTokenizer:
    """Return a description's tokenizer, without padding and with a template only if the layout is not BERT's."""
    cls_last = layout is not None and layout.cls_last
    description |= {"truncation": None, "padding": None, "post_processor": None}
    tokenizer = tokenizer_json.from_json(_json(description, indent=None), path)
    if cls_last or separators > 1:
        cls, sep = ((tokenizer.piece(number), number) for number in (tokenizer.cls_id, tokenizer.sep_id))
        description["post_processor"] = template(cls, sep, int(cls_last), cls_last, separators)
        return tokenizer_json.from_json(_json(description, indent=None), path)
    return tokenizer


def _normalization(settings: dict) -> dict[str, bool]:
    """Return the settings of `BertNormalizer` as BERT's classes set them; accents follow the case by default."""
    lowercase, accents = settings.get("do_lower_case", True), settings.get("strip_accents")
    return {
        "lowercase": lowercase,
        "strip_accents": lowercase if accents is None else accents,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
    }


def _symbols(tokenizer: Tokenizer) -> dict[str, str]:
    # Llama's tokenizers have no [UNK], for which bertjax takes their padding.
    names = ("sep", "pad", "cls", "mask") if tokenizer.unk_id == tokenizer.pad_id else _USED
    return {f"{name}_token": tokenizer.piece(getattr(tokenizer, f"{name}_id")) for name in names}


def _bert_settings(description: dict) -> dict[str, Any]:
    """Return the settings that make `BertTokenizer` normalize like this description."""
    normalizer = description["normalizer"]
    steps = [step for step in normalizer.get("normalizers", [normalizer]) if step["type"] == "BertNormalizer"]
    return {key: step[name] for step in steps for key, name in _BERT_KEYS.items()}


def load_if_there(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is no file; raises as `load_json` does."""
    return load_json(path) if path.exists() else {}


def load_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raises UserError if there is none."""
    try:
        settings = untrusted.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable JSON ({reason(error)}); download it again") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds a {type(settings).__name__}, not settings by name; download it again")
    return settings


def _json(value: dict, indent: int | None = 2) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=False).encode()
