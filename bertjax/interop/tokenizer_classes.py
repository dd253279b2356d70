"""The tokenizer classes of transformers: which of them a folder's files describe completely."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import UserError, quoted

# Classes that only use files. The names are without `Tokenizer` and `Fast`, one group for each kind of files.
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
)
_BYTE_BPE = ("Roberta", "Longformer", "Bart", "LED")
_SENTENCEPIECE = ("Albert", "XLNet", "XLMRoberta", "Camembert")
# Any kind of `tokenizer.json`: the classes of transformers 4 and 5 for it.
_GENERIC = ("PreTrained", "PreTrainedTokenizerFast", "TokenizersBackend")
# Classes whose code splits words or arranges ids, so that their files do not suffice.
_OWN_CODE = {
    "BertJapanese": "splits words by MeCab, Sudachi or Juman",
    "KoBert": "joins a SentencePiece model with a vocabulary of its own",
    "KoBERT": "joins a SentencePiece model with a vocabulary of its own",
    "Bertweet": "rewrites users, links and emoji and splits words by fastBPE",
    "Phobert": "splits words by fastBPE",
    "Flaubert": "splits words by rules of each language",
    "XLM": "splits words by rules of each language",
    "RoFormer": "splits Chinese words by rjieba",
    "MPNet": "has symbols of RoBERTa in a vocabulary of BERT",
    "Canine": "reads characters",
}
# The class of a folder that names none, by `model_type`; the other families are published with their own files only.
_DEFAULTS = {
    **{"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra", "mobilebert": "MobileBert"},
    **{"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "xlnet": "XLNet"},
    "albert": "Albert",
}
# Files that only classes with code of their own have.
_FASTBPE = "bpe.codes"
_REMEDY = "use a checkpoint with a tokenizer.json, or train a tokenizer here and continue from the model"


def name_of(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the tokenizer class of a folder without `Tokenizer` and `Fast`; empty if it is unknown.

    Args:
      settings: its `tokenizer_config.json`.
      config: its `config.json`, whose `tokenizer_class` counts if the other file has none.
    """
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if named is None:
        return _DEFAULTS.get(str(config.get("model_type")), "")
    return _stem(str(named))


def doubles_separator(name: str) -> bool:
    """Return whether a class puts two `</s>` between two texts."""
    return name in (*_BYTE_BPE, "XLMRoberta", "Camembert")


def rewrites_normalizer(name: str) -> bool:
    """Return whether a class replaces the normalizer's settings in a `tokenizer.json` by its own."""
    return name in _WORDPIECE or not name


def check(folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> None:
    """Check that the files of a folder are all that its tokenizer class uses.

    Args:
      folder: the checkpoint.
      settings: its `tokenizer_config.json`.
      config: its `config.json`.
      kind: the file that is read: `tokenizer.json`, `vocab.txt`, `vocab.json` or a SentencePiece model.

    Raises:
      UserError: the class has code of its own, or belongs to files of another kind.
    """
    name, named = name_of(settings, config), settings.get("tokenizer_class") or config.get("tokenizer_class")
    if named is not None and name in _OWN_CODE:
        raise UserError(
            f"{folder} has tokenizer_class={quoted(named)}, which {_OWN_CODE[name]}, and bertjax has no such code; "
            f"{_REMEDY}"
        )
    if settings.get("auto_map"):
        raise UserError(
            f"{folder} has a tokenizer with code of its own, tokenizer_class={quoted(named)} with auto_map, which "
            f"bertjax does not run; {_REMEDY}"
        )
    if kind == "tokenizer.json":
        return
    if (folder / _FASTBPE).exists():
        raise UserError(
            f"{folder} has a {_FASTBPE}, the merges of fastBPE (PhobertTokenizer, BertweetTokenizer), which bertjax "
            f"does not read; {_REMEDY}"
        )
    groups = {"vocab.txt": (_WORDPIECE, "BertTokenizer"), "vocab.json": (_BYTE_BPE, "RobertaTokenizer")}
    classes, example = groups.get(kind, (_SENTENCEPIECE, "AlbertTokenizer"))
    # An ALBERT with a vocab.txt has BERT's tokenizer, which no setting of the folder names.
    is_nameless = named is None and (name in classes or not name or (name, kind) == ("Albert", "vocab.txt"))
    if not is_nameless and name not in (*classes, *_GENERIC):
        what = f"tokenizer_class={quoted(named)}" if named else f"model_type={quoted(config.get('model_type'))}"
        raise UserError(
            f"{folder} has {what} and only {kind}, which bertjax reads as {example} does; {_REMEDY}, or set "
            f'"tokenizer_class": "{example}" in tokenizer_config.json if it is one'
        )


def note(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return a note if a `tokenizer.json` belongs to a class that bertjax does not know."""
    known = (*_WORDPIECE, *_BYTE_BPE, *_SENTENCEPIECE, *_GENERIC, *_OWN_CODE)
    if (name := name_of(settings, config)) in known or not name:
        return []
    return [f"tokenizer_class={name}Tokenizer is not known; its tokenizer.json is read as it is"]


def _stem(named: str) -> str:
    return named if named in _GENERIC else named.removesuffix("Fast").removesuffix("Tokenizer")
