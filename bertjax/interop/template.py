"""Where transformers puts special tokens: the template of a `tokenizer.json`."""

from typing import Any

Symbol = tuple[str, int]
# XLNet's segment of a <cls> that comes last (transformers 4.57, convert_slow_tokenizer.py: `XLNetConverter`).
_SEGMENT_OF_LAST_CLS = 2


def template(cls: Symbol, sep: Symbol, second: int, cls_last: bool) -> dict[str, Any]:
    """Return the template `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, or with [CLS] at the end.

    Args:
      cls: piece and id of [CLS].
      sep: piece and id of [SEP].
      second: the segment of B and its [SEP].
      cls_last: whether [CLS] comes last, in a segment of its own.
    """

    def symbol(piece: str, segment: int) -> dict:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    a = [{"Sequence": {"id": "A", "type_id": 0}}, symbol(sep[0], 0)]
    b = [{"Sequence": {"id": "B", "type_id": second}}, symbol(sep[0], second)]
    first, last = ([], [symbol(cls[0], _SEGMENT_OF_LAST_CLS)]) if cls_last else ([symbol(cls[0], 0)], [])
    return {
        "type": "TemplateProcessing",
        "single": [*first, *a, *last],
        "pair": [*first, *a, *b, *last],
        "special_tokens": {piece: {"id": piece, "ids": [number], "tokens": [piece]} for piece, number in (cls, sep)},
    }
