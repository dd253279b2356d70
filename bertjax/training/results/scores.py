"""`scores.npz`: per-example metrics from an evaluation, used for confidence intervals and tests."""

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError

# Array name prefixes for each metric: batch ids or record ids, and sums.
_IDS, _RECORDS, _SUMS = "ids/", "records/", "sums/"
# Subfolder of a workdir with one score file per probe.
_PROBES = "probes"


class Scores(NamedTuple):
    """A metric per unit, where a unit is a labeled example or a batch of held-out rows.

    Attributes:
      ids: int64 [U], ascending; equal ids in two runs mean the same unit.
      sums: float64 [U, 2], sum and weight; the metric is the ratio of their totals.
      by_record: whether units are records. Record ids are independent of the tokenizer, batch ids are not.
    """

    ids: np.ndarray
    sums: np.ndarray
    by_record: bool = False


def is_lower_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better: losses, also in bits per byte, and calibration errors."""
    return metric.endswith(("_loss", "_bits_per_byte")) or metric.rpartition("/")[2] in ("ece", "ece_calibrated")


def scores_of(ids: Iterable[int], sums: Iterable[tuple[float, float]], by_record: bool = False) -> Scores:
    """Return scores sorted by id."""
    # Sorted ids let two runs be aligned without regard to the order of their rows.
    ids = np.array(list(ids), np.int64)
    order = np.argsort(ids, kind="stable")
    return Scores(ids[order], np.array(list(sums), np.float64).reshape(-1, 2)[order], by_record)


def scores_of_records(scored: Iterable[tuple[Record, float, float]]) -> Scores:
    """Return scores from (record, sum, weight); ids are content hashes."""
    seen: Counter[str] = Counter()
    ids, sums = [], []
    for record, total, weight in scored:
        # Without the place in the file: a file in another order has the same records.
        content = json.dumps({key: value for key, value in record.items() if key != WHERE}, sort_keys=True)
        # Number equal records, so that duplicates in a file have different ids.
        seen[content] += 1
        ids.append(content_id(f"{seen[content]} {content}".encode()))
        sums.append((total, weight))
    return scores_of(ids, sums, by_record=True)


def content_id(content: bytes) -> int:
    """Return a 64-bit hash."""
    # Signed, to fit into the int64 array of ids.
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def write_scores(path: epath.Path, scores: Mapping[str, Scores]) -> None:
    """Write scores by metric, locally or to an object store."""
    arrays = {f"{_RECORDS if each.by_record else _IDS}{name}": each.ids for name, each in scores.items()}
    arrays |= {f"{_SUMS}{name}": of_metric.sums for name, of_metric in scores.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    storage.retry(lambda: storage.write_bytes(path, content.getvalue()), path)


def read_scores(path: epath.Path) -> dict[str, Scores]:
    """Return {metric: scores}; empty if there is no file.

    Raises:
      UserError: the file is damaged.
    """
    if not storage.exists(path):
        return {}
    try:
        # `path` may be on an object store, and a zip file needs seeking: read it whole.
        with np.load(io.BytesIO(path.read_bytes())) as arrays:
            named = [(kind, name.removeprefix(kind)) for name in arrays.files for kind in (_IDS, _RECORDS)]
            return {
                name: Scores(arrays[f"{kind}{name}"], arrays[f"{_SUMS}{name}"], kind == _RECORDS)
                for kind, name in named
                if f"{kind}{name}" in arrays.files
            }
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to compare without examples") from error


def write_probe(workdir: epath.Path, name: str, scores: Mapping[str, Scores]) -> epath.Path:
    """Write a probe's scores for a run's newest checkpoint, and return the path."""
    folder = workdir / _PROBES
    folder.mkdir(parents=True, exist_ok=True)
    write_scores(folder / f"{name}.npz", scores)
    return folder / f"{name}.npz"


def read_probes(workdir: epath.Path) -> dict[str, Scores]:
    """Return {`probe/metric`: scores} for all probes in a workdir."""
    folder = workdir / _PROBES
    paths = sorted(folder.glob("*.npz")) if folder.exists() else []
    return {
        f"{path.name.removesuffix('.npz')}/{metric}": scores
        for path in paths
        for metric, scores in read_scores(path).items()
    }
