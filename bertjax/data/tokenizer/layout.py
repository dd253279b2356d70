"""Special-token layout, read from and written to a `tokenizer.json` post-processor (tokenizers 0.22, `processors`).

BERT: `[CLS] A [SEP] B [SEP]`. RoBERTa: `<s> A </s></s> B </s>`. XLNet: `A <sep> B <sep> <cls>`.
"""

from typing import Any, NamedTuple

from bertjax.runtime.errors import quoted, reason

Symbol = tuple[str, int]
# XLNet gives a trailing <cls> its own segment (transformers 4.57, convert_slow_tokenizer.py: `XLNetConverter`).
_SEGMENT_OF_LAST_CLS = 2


class Layout(NamedTuple):
    """Special tokens in an example, and their order.

    Attributes:
      cls: piece for [CLS].
      sep: piece for [SEP].
      cls_last: whether [CLS] comes last instead of first.
      separators: number of [SEP] between two texts.
      segment: segment id for the second text.
    """

    cls: str
    sep: str
    cls_last: bool = False
    separators: int = 1
    segment: int = 1


def template(cls: Symbol, sep: Symbol, segment: int, cls_last: bool = False, separators: int = 1) -> dict[str, Any]:
    """Build the post-processor for a layout.

    Args:
      cls: piece and id for [CLS].
      sep: piece and id for [SEP].
      segment, cls_last, separators: see `Layout`. A trailing [CLS] gets its own segment.
    """

    def symbol(piece: str, segment: int) -> dict:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    a = [{"Sequence": {"id": "A", "type_id": 0}}, symbol(sep[0], 0)]
    b = [{"Sequence": {"id": "B", "type_id": segment}}, symbol(sep[0], segment)]
    between = [symbol(sep[0], 0)] * (separators - 1)
    first, last = ([], [symbol(cls[0], _SEGMENT_OF_LAST_CLS)]) if cls_last else ([symbol(cls[0], 0)], [])
    return {
        "type": "TemplateProcessing",
        "single": [*first, *a, *last],
        "pair": [*first, *a, *between, *b, *last],
        "special_tokens": {piece: {"id": piece, "ids": [number], "tokens": [piece]} for piece, number in (cls, sep)},
    }


def layout_of(post_processor: dict[str, Any] | None) -> Layout | None:
    """Recognize a post-processor's layout; None if it has none, or an unknown one.

    Raises:
      ValueError: it is damaged.
    """
    try:
        for step in _steps(post_processor):
            if step["type"] in ("BertProcessing", "RobertaProcessing"):
                is_roberta, (cls, _), (sep, _) = step["type"] == "RobertaProcessing", step["cls"], step["sep"]
                return Layout(cls, sep, separators=1 + is_roberta, segment=int(not is_roberta))
            if step["type"] == "TemplateProcessing":
                return _of_template(_parts(step["single"]), _parts(step["pair"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its post_processor is damaged ({reason(error)})") from None
    return None


def spelled(post_processor: dict[str, Any] | None) -> str:
    """Spell out a template's layout for one text, such as `A </s>`; empty if there is no template."""
    templates = [step for step in _steps(post_processor) if step["type"] == "TemplateProcessing"]
    return " ".join(name for name, _ in _parts(templates[0]["single"])) if templates else ""


def refusal(spelled: str) -> str:
    """Return the end of an error line about a template that bertjax does not know, see `spelled`."""
    return f"lays out a text as {quoted(spelled)}, and bertjax as [CLS] A [SEP] or A [SEP] [CLS]; correct its template"


def _steps(post_processor: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not post_processor:
        return []
    return post_processor["processors"] if post_processor["type"] == "Sequence" else [post_processor]


def _parts(template: list[dict]) -> list[tuple[str, int]]:
    """Return (name, segment) for each part in a template; the name is `A`, `B` or a symbol's piece."""
    return [(part["id"], part["type_id"]) for entry in template for part in entry.values()]


def _of_template(single: list[tuple[str, int]], pair: list[tuple[str, int]]) -> Layout | None:
    # Only the layouts in the module docstring are recognized; the pair template must repeat the single one's symbols.
    names = [name for name, _ in single]
    if len(names) != 3 or "A" not in names[:2]:
        return None
    cls_last = names[0] == "A"
    cls, sep = (names[2], names[1]) if cls_last else (names[0], names[2])
    of_pair = [name for name, _ in pair]
    if "A" not in of_pair or "B" not in of_pair:
        return None
    between = of_pair[of_pair.index("A") + 1 : of_pair.index("B")]
    first, last = ([], [cls]) if cls_last else ([cls], [])
    if not between or of_pair != [*first, "A", *[sep] * len(between), "B", sep, *last]:
        return None
    return Layout(cls, sep, cls_last, len(between), pair[of_pair.index("B")][1])
