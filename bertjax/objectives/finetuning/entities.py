"""Entity-level precision, recall and F1, as counted by `conlleval` (CoNLL-2000 and CoNLL-2003).

Tags may follow any scheme in `bertjax.data.labeled.tag_schemes`. Invalid tag sequences, which models do predict, are
interpreted as in `conlleval`. seqeval gives the same numbers in its default mode.
"""

from collections.abc import Iterable, Sequence

from bertjax.data.labeled import tag_schemes
from bertjax.data.labeled.tag_schemes import OUTSIDE


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) for each entity in a sentence; `tags` are in IOB or IOBES."""
    found, before = [], OUTSIDE
    for word, tag in enumerate(tags):
        if tag != OUTSIDE:
            if _starts(before, tag):
                found.append((tag[2:], word, word))
            else:  # the last entity goes on
                kind, first, _ = found[-1]
                found[-1] = (kind, first, word)
        before = tag
    return set(found)


def _starts(before: str, tag: str) -> bool:
    """Return whether a tag other than O starts a new entity, given the tag before it."""
    # A change of type also starts one, which covers IOB1, where B appears only between entities of one type.
    return before == OUTSIDE or before[0] in "ES" or tag[0] in "BS" or before[2:] != tag[2:]


def scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], classes: Iterable[str] = ()
) -> dict[str, float]:
    """Return micro-averaged `precision`, `recall` and `f1` over whole entities; 0 if there is nothing to count.

    Args:
      gold: correct tags per sentence.
      predicted: predicted tags per sentence.
      classes: all tags, from which the scheme is inferred; by default all tags in `gold` and `predicted`.
    """
    gold, predicted = list(gold), list(predicted)
    canonical = tag_schemes.canonical_of(classes or {tag for tags in (*gold, *predicted) for tag in tags}) or str
    correct = num_gold = num_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        of_gold, of_predicted = (entities(list(map(canonical, tags))) for tags in (gold_tags, predicted_tags))
        correct += len(of_gold & of_predicted)
        num_gold += len(of_gold)
        num_predicted += len(of_predicted)
    return {
        "precision": correct / max(1, num_predicted),
        "recall": correct / max(1, num_gold),
        "f1": 2 * correct / max(1, num_gold + num_predicted),
    }
