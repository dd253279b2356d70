"""Report on filters and near-duplicate removal, as lines for the terminal."""

import collections
from pathlib import Path
from typing import Any

from bertjax.data.preparation.cleaning import read_dropped
from bertjax.data.preparation.ledger import READ
from bertjax.runtime.errors import printable

CLUSTERS_LISTED = 3
BEGINNING = 80


def lines(cleaning: dict[str, Any]) -> list[str]:
    """Return the counts in a store's manifest by filter, reason and source; empty if nothing was cleaned."""
    if not cleaning:
        return []
    result = []
    by_reason: dict[tuple[str, str], dict[str, int]] = collections.defaultdict(dict)
    for source, by_rule in cleaning["dropped"].items():
        for rule, reasons in by_rule.items():
            for reason, number in reasons.items():
                by_reason[rule, reason][source] = number
    # By filter, then the most frequent reason first; the reason breaks ties, so the report is always the same.
    ranked = sorted(by_reason.items(), key=lambda entry: (entry[0][0], -sum(entry[1].values()), entry[0][1]))
    for (rule, reason), by_source in ranked:
        result.append(f"dropped by {rule}: {_counts(by_source)}, {printable(reason)}")
    changed: dict[str, dict[str, list[int]]] = collections.defaultdict(dict)
    for source, by_rule in cleaning["changed"].items():
        for rule, numbers in by_rule.items():
            changed[rule][source] = numbers
    for rule, by_source in sorted(changed.items()):
        changes = sum(number for _, number in by_source.values())
        documents = _counts({source: number for source, (number, _) in by_source.items()})
        result.append(f"changed by {rule}: {documents}, {changes:,} changes")
    if "clusters" in cleaning:
        result.append(f"near-duplicates dropped: {_counts(cleaning['near_duplicates'])}")
        result.append(f"clusters of near-duplicates: {cleaning['clusters']:,}")
        for size, document, beginning in cleaning["largest"][:CLUSTERS_LISTED]:
            start = " ".join(beginning.split())[:BEGINNING]
            result.append(f"  {size:,} documents, {printable(document)} stays: {printable(start)}")
    return result


def empty_sources(manifest: dict[str, Any]) -> list[str]:
    """Return a warning for each source without a training document."""
    return [
        f"warning: no training document of {source} is left; --show-dropped=5 prints why, for each filter"
        for source, counts in manifest["counts"]["train"].items()
        if not counts["documents"]
    ]


def warnings(manifest: dict[str, Any], most: float) -> list[str]:
    """Return a warning for each filter that drops too many documents in a source.

    Args:
      manifest: the store's manifest.
      most: largest fraction of a source's documents without a warning.
    """
    lines = []
    for source, by_rule in manifest.get("cleaning", {}).get("dropped", {}).items():
        read, _ = manifest["ledger"][source][READ]
        of = f" of {source}" if len(manifest["duplicates"]) > 1 else ""
        for rule, reasons in by_rule.items():
            if (number := sum(reasons.values())) > most * read:
                lines.append(
                    f"warning: the filter {rule} drops {number / read:.0%} of the documents{of} ({number:,} of "
                    f"{read:,}); read some with --show-dropped=5: a rule made for other text drops good documents"
                )
    return lines


def show(folder: Path, number: int) -> str:
    """Return up to `number` dropped documents for each reason, as text.

    Raises:
      UserError: the store was made without filters and near-duplicates.
    """
    shown: collections.Counter[tuple[str, str]] = collections.Counter()
    result = collections.defaultdict(list)
    for line in read_dropped(folder):
        reason = line["rule"], line["reason"]
        # Counted beyond `number` too, because the heading has the total.
        shown[reason] += 1
        if shown[reason] <= number:
            detail = f": {' '.join(line['text'].split())}" if "text" in line else ""
            detail += f", {line['kept_source']}/{line['kept']} stays" if "kept" in line else ""
            result[reason].append(printable(f"  {line['source']}/{line['id']}{detail}"))
    if not shown:
        return "no document was dropped"
    return "\n".join(
        f"{rule}, {printable(reason)}: {_counts({'': shown[rule, reason]})}\n" + "\n".join(documents)
        for (rule, reason), documents in sorted(result.items())
    )


def _counts(by_source: dict[str, int]) -> str:
    """Return a total, with the counts by source if there are several: `3 documents (a 1, b 2)`."""
    total = sum(by_source.values())
    details = ", ".join(f"{source} {number:,}" for source, number in by_source.items())
    return f"{total:,} document{'s' * (total != 1)}" + (f" ({details})" if len(by_source) > 1 else "")
