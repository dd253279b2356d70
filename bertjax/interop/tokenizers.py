"""Tokenizer files in both directions: what `AutoTokenizer` opens, and what it had opened, as bertjax's tokenizers."""

import json
from pathlib import Path
from typing import Any

from bertjax.data.tokenizer import Tokenizer, byte_bpe, sentencepiece, tokenizers_library, wordpiece
from bertjax.data.tokenizer.sentencepiece import SentencePieceTokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.errors import UserError
from bertjax.interop import sentencepiece_json

MODEL, VOCAB, CONFIG, SYMBOLS = "tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"
_SENTENCEPIECE, _BYTE_VOCAB, _MERGES = "tokenizer.model", "vocab.json", "merges.txt"
# The class of transformers that takes a tokenizer.json as it stands; BERT's own rewrites the normalizer.
_CLASS = "PreTrainedTokenizerFast"
_BERT_CLASSES = tuple(
    f"{family}Tokenizer{kind}" for family in ("Bert", "DistilBert", "Electra") for kind in ("", "Fast")
)


def write(folder: Path, tokenizer: Tokenizer, longest: int, segments: int = 2) -> list[str]:
    """Writes the files that `AutoTokenizer` reads; the same ids come out, between [CLS] and [SEP].

    Args:
      folder: exists.
      tokenizer: of any kind.
      longest: example that the encoder takes, in tokens.
      segments: that the encoder tells apart; a second sequence is in the second of them where there is one.

    Returns:
      The names of the files.

    Raises:
      UserError: see `sentencepiece_json.describe`.
    """
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
            settings["add_prefix_space"] = True  # or transformers takes away what the description says
            for symbol in description["added_tokens"]:
                symbol["lstrip"] = symbol["id"] == tokenizer.mask_id  # the space before belongs to the masked word
    description["post_processor"] = _template(tokenizer, second=int(segments > 1))
    files |= {MODEL: _json(description, indent=None), CONFIG: _json(settings), SYMBOLS: _json(symbols)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def read(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint: its SentencePiece `tokenizer.model`, `tokenizer.json`, or older files of BERT
    (`vocab.txt`) and RoBERTa (`vocab.json` and `merges.txt`).

    Raises:
      UserError: none of them is there, or none that bertjax reads.
    """
    settings = load_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    description = load_json(folder / MODEL) if (folder / MODEL).exists() else {}
    if (folder / _SENTENCEPIECE).exists():
        found = sentencepiece.from_file(folder / _SENTENCEPIECE)
        steps = (description.get("normalizer") or {}).get("normalizers", [])
        rules = found.description.normalizer_spec.precompiled_charsmap
        ours = steps[:1] == [{"type": "NFC"}] and not rules  # as `sentencepiece_json` writes it
        return SentencePieceTokenizer(found.model, "nfc") if ours else found
    if description:
        return _from_description(description, settings, str(folder / MODEL))
    if (folder / _BYTE_VOCAB).exists() and (folder / _MERGES).exists():
        return byte_bpe.from_files(folder / _BYTE_VOCAB, folder / _MERGES)
    if (folder / VOCAB).exists():
        found = wordpiece.from_vocab(folder / VOCAB, settings.get("do_lower_case", True))
        description = found.description
        description["normalizer"]["normalizers"][-1] |= _normalization(settings)
        return tokenizers_library.from_json(_json(description, indent=None), str(folder / VOCAB))
    raise UserError(
        f"{folder} holds no tokenizer ({MODEL}, {VOCAB}, {_BYTE_VOCAB} with {_MERGES}, or {_SENTENCEPIECE}); download "
        "it beside the weights"
    )


def _from_description(description: dict, settings: dict, path: str) -> HuggingFaceTokenizer:
    """The description without what stands around the ids of a text, which bertjax adds itself."""
    normalizer = description.get("normalizer")
    if settings.get("tokenizer_class", _BERT_CLASSES[0]) in _BERT_CLASSES and (normalizer or {}).get("type") == (
        "BertNormalizer"
    ):  # the class puts its own settings in place of those that it finds
        normalizer |= _normalization(settings)
    for step in ("truncation", "padding", "post_processor"):
        description[step] = None
    for symbol in description.get("added_tokens", []):
        symbol["lstrip"] = symbol["rstrip"] = False
    return tokenizers_library.from_json(_json(description, indent=None), path)


def _normalization(settings: dict) -> dict[str, bool]:
    """What a class of BERT's tokenizers makes of a text before it splits it; accents go with capitals if not said."""
    lowercase = settings.get("do_lower_case", True)
    accents = settings.get("strip_accents")
    return {
        "lowercase": lowercase,
        "strip_accents": lowercase if accents is None else accents,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
    }


def _template(tokenizer: Tokenizer, second: int) -> dict[str, Any]:
    """[CLS] A [SEP] and [CLS] A [SEP] B [SEP], B and what follows in the segment `second`."""
    cls_piece, sep_piece = tokenizer.piece(tokenizer.cls_id), tokenizer.piece(tokenizer.sep_id)

    def symbol(piece: str, segment: int) -> dict:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    single = [symbol(cls_piece, 0), {"Sequence": {"id": "A", "type_id": 0}}, symbol(sep_piece, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": second}}, symbol(sep_piece, second)],
        "special_tokens": {
            piece: {"id": piece, "ids": [token_id], "tokens": [piece]}
            for piece, token_id in ((cls_piece, tokenizer.cls_id), (sep_piece, tokenizer.sep_id))
        },
    }


def _symbols(tokenizer: Tokenizer) -> dict[str, str]:
    names = ("unk", "sep", "pad", "cls", "mask")
    return {f"{name}_token": tokenizer.piece(getattr(tokenizer, f"{name}_id")) for name in names}


def _bert_settings(description: dict) -> dict[str, Any]:
    """What `BertTokenizer` must be told to read `vocab.txt` in the same way."""
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
    """Settings by name; raises UserError where there are none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no readable JSON ({error}); get it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__}, not settings by name; get it again")
    return found


def _json(value: dict, indent: int | None = 2) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=False).encode()
