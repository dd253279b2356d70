"""Precision, recall and F1 of entities in tagged words, as `conlleval` of CoNLL-2000 and CoNLL-2003 counts them.

Tags are in any scheme of `bertjax.data.labeled.tag_schemes`. Tags that contradict each other, as a model may predict,
are read as `conlleval` reads them. seqeval gives the same numbers in its default mode.
"""

from collections.abc import Iterable, Sequence

from bertjax.data.labeled import tag_schemes
from bertjax.data.labeled.tag_schemes import OUTSIDE


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the type, the first and the last word of each entity of a sentence; `tags` are in IOB or IOBES."""
    found, before = [], OUTSIDE
    for word, tag in enumerate(tags):
        if tag != OUTSIDE:
            if _starts(before, tag):
                found.append((tag[2:], word, word))
            else:
                kind, first, _ = found[-1]
                found[-1] = (kind, first, word)
        before = tag
    return set(found)


def _starts(before: str, tag: str) -> bool:
    """Return whether an entity starts at a tag that is not O, after the tag before it."""
    return before == OUTSIDE or before[0] in "ES" or tag[0] in "BS" or before[2:] != tag[2:]


def scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], classes: Iterable[str] = ()
) -> dict[str, float]:
    """Return `precision`, `recall` and `f1` of whole entities, all types together; 0 where there are none to count.

    Args:
      gold: tags of the words of each sentence.
      predicted: the same from a model.
      classes: all tags, which show how they are spelled; those of both by default.
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
