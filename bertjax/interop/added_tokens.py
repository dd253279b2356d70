"""Special symbols and added tokens: merges the files beside a tokenizer in the order in which transformers does.

(transformers 4.57, tokenization_utils_base.py: `_from_pretrained`; tokenization_utils_fast.py: `__init__`.) A
`tokenizer_config.json` with `added_tokens_decoder` is complete, and the other files are not read. Older folders have
`special_tokens_map.json` and `added_tokens.json` instead.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.data.tokenizer.layout import layout_of
from bertjax.data.tokenizer.tokenizers_library import ROLES, roles_of
from bertjax.runtime.errors import UserError, quoted

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
                f"{refused} declares the id {token['id']} for its added token {quoted(content)}, whose id in the "
                f"vocabulary is {number}; get the files of one tokenizer"
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
