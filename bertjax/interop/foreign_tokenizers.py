"""Tokenizers in folders of transformers: what a class does that its files do not say, and which symbols they declare.

Symbols and added tokens of the files beside a tokenizer are merged in the order in which transformers does
(transformers 4.57, tokenization_utils_base.py: `_from_pretrained`; tokenization_utils_fast.py: `__init__`). A
`tokenizer_config.json` with `added_tokens_decoder` is complete, and the other files are not read. Older folders have
`special_tokens_map.json` and `added_tokens.json` instead.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.data.tokenizer.layout import layout_of
from bertjax.data.tokenizer.tokenizers_library import ROLES, roles_of
from bertjax.runtime.errors import UserError, quoted

_VOCAB, _BYTE_VOCAB, _SPIECE = "vocab.txt", "vocab.json", "a SentencePiece model"
_S, _CLS = ("<s>", "</s>"), ("[CLS]", "[SEP]")


class Known(NamedTuple):
    """A tokenizer class of transformers that its files describe but for these facts.

    Attributes:
      file: the file with its vocabulary, if there is no `tokenizer.json`.
      bounds: its symbols for the start and the end of a text, unless a file declares others.
      separators: number of [SEP] between two texts.
      has_segments: whether `token_type_ids` are among its `model_input_names`; else both texts of a pair are in segment
        0. In transformers 5 ALBERT's and XLNet's have none, but the models were trained with two segments.
      family: the family whose order of ids a SentencePiece model has.
    """

    file: str
    bounds: tuple[str | None, str | None] = (None, None)
    separators: int = 1
    has_segments: bool = True
    family: str = ""


# {name of the class without `Tokenizer` and `Fast`: its facts}
_KNOWN = {
    **dict.fromkeys("Bert Electra MobileBert ConvBert LayoutLM Lxmert SqueezeBert RetriBert".split(), Known(_VOCAB)),
    "DistilBert": Known(_VOCAB, has_segments=False),
    "MPNet": Known(_VOCAB, _S, separators=2, has_segments=False),
    **dict.fromkeys("Roberta Longformer Bart LED".split(), Known(_BYTE_VOCAB, _S, separators=2, has_segments=False)),
    "Albert": Known(_SPIECE, _CLS, family="albert"),
    "XLNet": Known(_SPIECE, _S, family="xlnet"),
    "XLMRoberta": Known(_SPIECE, _S, separators=2, has_segments=False, family="xlm-roberta"),
    "Camembert": Known(_SPIECE, _S, separators=2, has_segments=False, family="camembert"),
    "DebertaV2": Known(_SPIECE, _CLS, family="deberta-v2"),
    # Classes that run any `tokenizer.json` as it is, in transformers 4 and 5.
    **dict.fromkeys(("", "PreTrained", "PreTrainedTokenizerFast"), Known("")),
    "TokenizersBackend": Known("", has_segments=False),
}
# {a file: the class that bertjax reads it as}
_READ_AS = {
    _VOCAB: "BertTokenizer",
    _BYTE_VOCAB: "RobertaTokenizer",
    _SPIECE: "AlbertTokenizer",
    "tokenizer.model": "PreTrainedTokenizerFast",  # of bertjax, which makes a tokenizer.json of it
}
# MPNet's vocabulary has the symbols of both BERT and RoBERTa. Only [UNK] is BERT's (transformers 5.24,
# tokenization_mpnet.py).
_MPNET = {"unk_token": "[UNK]", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}
# A class that lays out texts by two settings, whatever the template of its `tokenizer.json` is.
_GEMMA = "Gemma"
# Classes with code that splits words or arranges ids, such as MeCab: their files alone would give other ids.
_OWN_CODE = frozenset("BertJapanese KoBert KoBERT Bertweet Phobert Flaubert XLM RoFormer Canine".split())
_FASTBPE = "bpe.codes"  # a file of some of them
_REMEDY = "use a checkpoint with a tokenizer.json, or train a tokenizer here and continue from the model"


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """The tokenizer class of a folder.

    Attributes:
      settings: content of `tokenizer_config.json`.
      config: content of `config.json`, the fallback for `tokenizer_class`.
    """

    settings: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def named(self) -> Any:
        """The class that the folder names, or None."""
        return self.settings.get("tokenizer_class") or self.config.get("tokenizer_class")

    @property
    def name(self) -> str:
        """Its name without `Tokenizer` and `Fast`, that of the family if the folder names none; empty if unknown."""
        if self.named is None:
            own = str(self.config.get("model_type")).replace("-", "")
            return next((name for name in _KNOWN if name.lower() == own), "")
        named = str(self.named)
        return named if named in _KNOWN else named.removesuffix("Fast").removesuffix("Tokenizer")

    @property
    def facts(self) -> Known:
        """What is known of it; of an unknown class as of BERT's."""
        return _KNOWN.get(self.name, Known("?"))

    @property
    def is_generic(self) -> bool:
        """Whether the folder names no class, or one that runs any `tokenizer.json`; as bertjax writes it."""
        return self.named is None or not self.facts.file

    @property
    def gives_segments(self) -> bool:
        """Whether it passes segments to the model, by `tokenizer_config.json` or by default."""
        inputs = self.settings.get("model_input_names")
        return self.facts.has_segments if inputs is None else "token_type_ids" in inputs

    def with_symbols(self) -> dict[str, Any]:
        """Return `tokenizer_config.json` with the symbols of the class, where the names of pieces do not tell them."""
        bounds = dict(zip(("bos_token", "eos_token"), self.facts.bounds, strict=True))
        return bounds | (_MPNET if self.name == "MPNet" else {}) | dict(self.settings)

    def check(self, folder: Path, kind: str) -> None:
        """Check that a folder's files describe the class completely.

        Args:
          folder: the checkpoint.
          kind: name of the file to read: `tokenizer.json`, `tokenizer.model`, `vocab.txt`, `vocab.json` or a published
            SentencePiece model.

        Raises:
          UserError: the class has its own code, or uses another kind of file.
        """
        name, named, settings = self.name, self.named, self.settings
        signs = {
            f"tokenizer_class={quoted(named)}": named is not None and name in _OWN_CODE,
            # Python files in the folder, which transformers runs with trust_remote_code=True.
            f"tokenizer_class={quoted(named)} with auto_map": bool(settings.get("auto_map")),
            f"a {_FASTBPE}, the merges of fastBPE": kind != "tokenizer.json" and (folder / _FASTBPE).exists(),
        }
        if own_code := next((sign for sign, is_there in signs.items() if is_there), ""):
            raise UserError(
                f"{folder} has {own_code}: words are split by code of its own, which bertjax does not run; {_REMEDY}"
            )
        if name == _GEMMA and not (settings.get("add_bos_token", True) and settings.get("add_eos_token")):
            raise UserError(
                f"{folder} has tokenizer_class={quoted(named)} without add_eos_token: texts end without [SEP] there; "
                'if tokenizer.json has a template, set "tokenizer_class": "PreTrainedTokenizerFast"'
            )
        if kind == "tokenizer.json":
            return
        file = kind if kind in _READ_AS else _SPIECE
        # Some ALBERTs were published with BERT's vocab.txt and no setting that says so. Runs name no class.
        is_usual = (name, kind) == ("Albert", _VOCAB) or kind == "tokenizer.model"
        if self.facts.file not in ("", file) and not (named is None and is_usual):
            key, value = ("tokenizer_class", named) if named else ("model_type", self.config.get("model_type"))
            raise UserError(
                f"{folder} has {key}={quoted(value)} and only {kind}, which bertjax reads as {_READ_AS[file]} does; "
                f'{_REMEDY}, or set "tokenizer_class": "{_READ_AS[file]}" in tokenizer_config.json if it is one'
            )

    @property
    def notes(self) -> list[str]:
        """A note if a `tokenizer.json` belongs to an unknown class, or one that lays out pairs in another way."""
        if self.name == _GEMMA:
            return [
                "the second text of a pair follows [SEP], as in transformers 5; in 4, GemmaTokenizer adds [CLS] to it"
            ]
        if self.name in _KNOWN:
            return []
        return [f"tokenizer_class={self.name}Tokenizer is not known; its tokenizer.json is read as it is"]


# {key of transformers' files: the symbol's name in BERT}. The order matters: symbols that are missing from the
# vocabulary get their ids in this order.
_ROLE_KEYS = {
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# `additional_special_tokens` and its names in transformers 5: a list, or a mapping from a name to a token.
_EXTRA_KEYS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
_BOUNDS = ("[BOS]", "[EOS]")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Declared(NamedTuple):
    """Declarations of a folder's tokenizer files.

    Attributes:
      roles: {name of a symbol in BERT: its piece}.
      added: {token: its flags, and its `id` if declared}. New tokens get their ids in this order.
      bounds: the same for [BOS] and [EOS], which examples do not use. If the vocabulary lacks them, they get ids before
        other new tokens; if there are none, they are left out, since a model may have no rows for them.
      flags: {token: its flags in `added_tokens_decoder`}, which replace those of `tokenizer.json`.
    """

    roles: dict[str, str]
    added: dict[str, dict[str, Any]]
    bounds: dict[str, str]
    flags: dict[str, dict[str, Any]]


def declared(settings: Mapping[str, Any], symbols: Mapping[str, Any], ids: Mapping[str, int]) -> Declared:
    """Return the symbols and added tokens that a folder declares.

    Args:
      settings: content of `tokenizer_config.json`.
      symbols: content of `special_tokens_map.json`.
      ids: content of `added_tokens.json`.
    """
    decoder = settings.get("added_tokens_decoder")
    values = settings if decoder is not None else {**settings, **symbols}
    # A value is a piece or a mapping with flags; null means that the tokenizer has no such symbol.
    roles = {symbol: _token(values[key])["content"] for key, symbol in _ROLE_KEYS.items() if values.get(key)}
    extra = [_token(value) for key in _EXTRA_KEYS for value in _listed(values.get(key))]
    special = {*roles.values(), *(token["content"] for token in extra)}
    if decoder is not None:
        numbered = [(int(number), _token(token)) for number, token in decoder.items()]
    else:
        plain = ((number, token, token in special) for token, number in ids.items())
        numbered = [(number, _flags(token, is_special)) for number, token, is_special in plain]
    # New ids are given in order, so the declared ones must come in order too.
    numbered = sorted(numbered, key=lambda entry: entry[0])
    added = {token["content"]: token | {"id": number} for number, token in numbered}
    flags = {token["content"]: token for _, token in numbered if decoder is not None}
    bounds = {symbol: roles.pop(symbol) for symbol in _BOUNDS if symbol in roles}
    for token in (*map(_token, roles.values()), *extra):
        added.setdefault(token["content"], token | {"special": True})
    return Declared(roles, added, bounds, flags)


def complete(description: dict[str, Any], files: Declared, is_json: bool, refused: str) -> tuple[dict, list[str]]:
    """Add the declared symbols and tokens to a `tokenizer.json`; return it with notes.

    Args:
      description: the parsed `tokenizer.json`, or one made from older files.
      files: declarations of the other files, see `declared`.
      is_json: True for a real `tokenizer.json`. Its template then overrides the declared [CLS] and [SEP].
      refused: name of the folder in errors.

    Raises:
      UserError: a declared id differs from the token's id in the vocabulary.
    """
    model = description["model"]
    vocab = model["vocab"] if isinstance(model["vocab"], dict) else {p: i for i, (p, _) in enumerate(model["vocab"])}
    tokens = [token | files.flags.get(token["content"], {}) for token in description.get("added_tokens") or []]
    known = {token["content"]: token["id"] for token in tokens}
    new_id = max({*vocab.values(), *known.values()}, default=-1) + 1
    bounds = [piece for piece in dict.fromkeys(files.bounds.values()) if piece not in vocab | known | files.added]
    for content, token in files.added.items():
        while bounds and "id" not in token and content not in vocab and content not in known:
            tokens.append({"id": new_id, **_flags(bounds.pop(0), is_special=True)})
            new_id += 1
        number = known.get(content, vocab.get(content, new_id))
        if token.get("id", number) != number:
            raise UserError(
                f"{refused} adds {quoted(content)} with id {token['id']}, its vocabulary with {number}; get both again"
            )
        if content not in known:
            tokens.append({"id": number, **{flag: value for flag, value in token.items() if flag != "id"}})
            new_id = max(new_id, number + 1)
    description = description | {"added_tokens": sorted(tokens, key=lambda token: token["id"])}
    added = {token["content"] for token in tokens}  # which a trimmed vocabulary keeps
    bounds = {symbol: piece for symbol, piece in files.bounds.items() if piece in added}
    return _with_roles(description, files.roles | bounds, is_json)


def _with_roles(description: dict, roles: dict[str, str], is_json: bool) -> tuple[dict, list[str]]:
    layout, notes = layout_of(description.get("post_processor")) if is_json else None, []
    if layout:
        used = {"[CLS]": layout.cls, "[SEP]": layout.sep}
        notes = [
            f"{symbol} is declared as {quoted(roles[symbol])}, and the template of tokenizer.json has {quoted(piece)}; "
            "texts are laid out as the template has it, as in transformers 4 and not in 5"
            for symbol, piece in used.items()
            if roles.get(symbol, piece) != piece
        ]
        roles = roles | used
    model = description["model"]
    if model["type"] == "WordPiece":
        if not is_json and roles.get("[UNK]") in model["vocab"]:
            description = description | {"model": model | {"unk_token": roles["[UNK]"]}}
        roles = roles | {"[UNK]": description["model"]["unk_token"]}
    # Only roles that the pieces' names do not give away are stored, so that ordinary files stay as they are.
    usual = roles_of(description | {"post_processor": None})
    # Sorted: what is declared and what the template adds must give the same bytes.
    unusual = {symbol: piece for symbol, piece in sorted(roles.items()) if usual.get(symbol) != piece}
    return description | ({ROLES: unusual} if unusual else {}), notes


def _listed(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) and "content" not in value else value or ()


def _token(value: str | dict[str, Any]) -> dict[str, Any]:
    """Return an added token with all flags; a bare string is a special token."""
    if isinstance(value, str):
        return _flags(value, is_special=True)
    return _flags(value["content"], value.get("special", False)) | {f: value[f] for f in _FLAGS if f in value}


def _flags(content: str, is_special: bool) -> dict[str, Any]:
    """Return the defaults of `AddedToken(content, special=is_special)`: only ordinary tokens are normalized."""
    sides = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"content": content, **sides, "normalized": not is_special, "special": is_special}
