"""Tokenizer classes of transformers, by whether a folder's files describe them completely."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.runtime.errors import UserError, quoted

# Classes that files describe completely, without `Tokenizer` and `Fast` in their names; one group per kind of file.
_WORDPIECE = (
    "Bert",
    "DistilBert",
    "Electra",
    "MobileBert",
    "ConvBert",
    "LayoutLM",
    "Lxmert",
    "SqueezeBert",
    "RetriBert",
    "MPNet",
)
_BYTE_BPE = ("Roberta", "Longformer", "Bart", "LED")
# {class: the family whose order of ids it has}
_SENTENCEPIECE = {
    **{"Albert": "albert", "XLNet": "xlnet", "XLMRoberta": "xlm-roberta", "Camembert": "camembert"},
    "DebertaV2": "deberta-v2",
}
# {class: its symbols for the start and the end of a text, unless a file declares others}
_BOUNDS = dict.fromkeys((*_BYTE_BPE, "XLMRoberta", "Camembert", "XLNet", "MPNet"), ("<s>", "</s>")) | {
    "Albert": ("[CLS]", "[SEP]"),
    "DebertaV2": ("[CLS]", "[SEP]"),
}
# MPNet's vocabulary has the symbols of both BERT and RoBERTa. Only [UNK] is BERT's (transformers 5.24,
# tokenization_mpnet.py).
_MPNET = {
    "unk_token": "[UNK]",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
# A class that lays out texts by two settings, whatever the template of its `tokenizer.json` is.
_GEMMA = "Gemma"
# Classes that run any `tokenizer.json` as it is: `PreTrainedTokenizerFast` in transformers 4, the last one in 5.
_IN_TRANSFORMERS_5 = "TokenizersBackend"
_GENERIC = ("PreTrained", "PreTrainedTokenizerFast", _IN_TRANSFORMERS_5)
# Classes without `token_type_ids` among their `model_input_names`: both texts of a pair are then in segment 0. In
# transformers 5 these are also ALBERT's and XLNet's, but the models were trained with two segments.
_ONE_SEGMENT = (*_BYTE_BPE, "XLMRoberta", "Camembert", "DistilBert", "MPNet", _IN_TRANSFORMERS_5)
# Classes with code that splits words or arranges ids: their files alone would give other ids.
_OWN_CODE = {
    "BertJapanese": "splits words by MeCab, Sudachi or Juman",
    "KoBert": "joins a SentencePiece model with a vocabulary of its own",
    "KoBERT": "joins a SentencePiece model with a vocabulary of its own",
    "Bertweet": "rewrites users, links and emoji and splits words by fastBPE",
    "Phobert": "splits words by fastBPE",
    "Flaubert": "splits words by rules of each language",
    "XLM": "splits words by rules of each language",
    "RoFormer": "splits Chinese words by rjieba",
    "Canine": "reads characters",
}
# The class of a folder that names none, by `model_type`.
_DEFAULTS = {
    **{"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra", "mobilebert": "MobileBert"},
    **{"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "xlnet": "XLNet"},
    **{"albert": "Albert", "deberta-v2": "DebertaV2", "mpnet": "MPNet"},
}
# A file of classes in `_OWN_CODE`.
_FASTBPE = "bpe.codes"
_REMEDY = "use a checkpoint with a tokenizer.json, or train a tokenizer here and continue from the model"


def name_of(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return a folder's tokenizer class, without `Tokenizer` and `Fast`; empty if it is unknown.

    Args:
      settings: content of `tokenizer_config.json`.
      config: content of `config.json`, the fallback for `tokenizer_class`.
    """
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if named is None:
        return _DEFAULTS.get(str(config.get("model_type")), "")
    return _stem(str(named))


def is_generic(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether a folder names no tokenizer class, or one that runs any `tokenizer.json`; as bertjax writes it."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return named is None or _stem(str(named)) in _GENERIC


def doubles_separator(name: str) -> bool:
    """Return whether a class puts two `</s>` between two texts."""
    return name in (*_BYTE_BPE, "XLMRoberta", "Camembert", "MPNet")


def with_symbols(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `tokenizer_config.json` with the symbols that a class has by default, where names do not tell them."""
    bounds = dict(zip(("bos_token", "eos_token"), _BOUNDS.get(name, (None, None)), strict=True))
    return bounds | (_MPNET if name == "MPNet" else {}) | settings


def gives_segments(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a class passes segments to the model, by its `tokenizer_config.json` or by default."""
    inputs = settings.get("model_input_names")
    return name not in _ONE_SEGMENT if inputs is None else "token_type_ids" in inputs


def sentencepiece_family(name: str, config: Mapping[str, Any]) -> str:
    """Return the family whose order of ids a SentencePiece model has: the class decides, as in `AutoTokenizer`."""
    return _SENTENCEPIECE.get(name, str(config.get("model_type")))


def keeps_prefix_space(name: str) -> bool:
    """Return whether a class leaves `add_prefix_space` of a `tokenizer.json` as it is; only that of transformers 5."""
    return name == _IN_TRANSFORMERS_5


def rewrites_normalizer(name: str) -> bool:
    """Return whether a class overrides the normalizer in a `tokenizer.json` with its own settings."""
    return name in _WORDPIECE or not name


def check(folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> None:
    """Check that a folder's files describe its tokenizer class completely.

    Args:
      folder: the checkpoint.
      settings: content of `tokenizer_config.json`.
      config: content of `config.json`.
      kind: name of the file to read: `tokenizer.json`, `tokenizer.model`, `vocab.txt`, `vocab.json` or a published
        SentencePiece model.

    Raises:
      UserError: the class has its own code, or uses another kind of file.
    """
    name, named = name_of(settings, config), settings.get("tokenizer_class") or config.get("tokenizer_class")
    if named is not None and name in _OWN_CODE:
        raise UserError(
            f"{folder} has tokenizer_class={quoted(named)}, which {_OWN_CODE[name]}, and bertjax has no such code; "
            f"{_REMEDY}"
        )
    # `auto_map` names Python files in the folder, which transformers runs with trust_remote_code=True.
    if settings.get("auto_map"):
        raise UserError(
            f"{folder} has a tokenizer with code of its own, tokenizer_class={quoted(named)} with auto_map, which "
            f"bertjax does not run; {_REMEDY}"
        )
    if name == _GEMMA and not (settings.get("add_bos_token", True) and settings.get("add_eos_token")):
        raise UserError(
            f"{folder} has tokenizer_class={quoted(named)} without add_eos_token: texts end without [SEP] there; set "
            '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json if tokenizer.json has a template'
        )
    if kind == "tokenizer.json":
        return
    if (folder / _FASTBPE).exists():
        raise UserError(
            f"{folder} has a {_FASTBPE}, the merges of fastBPE (PhobertTokenizer, BertweetTokenizer), which bertjax "
            f"does not read; {_REMEDY}"
        )
    groups = {
        "vocab.txt": (_WORDPIECE, "BertTokenizer"),
        "vocab.json": (_BYTE_BPE, "RobertaTokenizer"),
        "tokenizer.model": ((), "PreTrainedTokenizerFast"),  # of bertjax, which makes a tokenizer.json of it
    }
    classes, example = groups.get(kind, (_SENTENCEPIECE, "AlbertTokenizer"))
    # Some ALBERTs were published with BERT's vocab.txt and no setting that says so. Runs name no class.
    is_usual = name in classes or not name or (name, kind) == ("Albert", "vocab.txt") or kind == "tokenizer.model"
    is_nameless = named is None and is_usual
    if not is_nameless and name not in (*classes, *_GENERIC):
        what = f"tokenizer_class={quoted(named)}" if named else f"model_type={quoted(config.get('model_type'))}"
        raise UserError(
            f"{folder} has {what} and only {kind}, which bertjax reads as {example} does; {_REMEDY}, or set "
            f'"tokenizer_class": "{example}" in tokenizer_config.json if it is one'
        )


def note(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return a note if a `tokenizer.json` belongs to an unknown class, or one that lays out pairs in another way."""
    known = (*_WORDPIECE, *_BYTE_BPE, *_SENTENCEPIECE, *_GENERIC, *_OWN_CODE)
    if (name := name_of(settings, config)) == _GEMMA:
        return ["the second text of a pair follows [SEP], as in transformers 5; in 4, GemmaTokenizer adds [CLS] to it"]
    if name in known or not name:
        return []
    return [f"tokenizer_class={name}Tokenizer is not known; its tokenizer.json is read as it is"]


def _stem(named: str) -> str:
    return named if named in _GENERIC else named.removesuffix("Fast").removesuffix("Tokenizer")
