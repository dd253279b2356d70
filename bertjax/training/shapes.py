"""Names, shapes and dtypes of batch arrays, without a corpus."""

from typing import cast

import jax
import numpy as np

from bertjax.config.config import Task
from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.formats import TextFormat
from bertjax.data.plan import Spec
from bertjax.runtime.errors import UserError


def batch_shapes(task: Task, vocab_size: int, seq_len: int, rows: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of a task's batch, found by building the features of an artificial example.

    N is the maximum number of examples that the task packs into a row, as a multiple of the objective's `group`.

    Args:
      vocab_size: V.
      seq_len: T.
      rows: B.

    Raises:
      UserError: the first axis of a feature is not the batch.
    """
    spec = Spec("train", cast(TextFormat, task.examples), seq_len, seed=0, row_examples=task.row_examples)
    group = task.objective.traits.group
    slots = max(1, spec.max_row_examples // group) * group
    vocabulary = Vocabulary(vocab_size, pad_id=0, cls_id=1, sep_id=2, mask_id=3, special_ids=(0, 1, 2, 3))
    # One row: example 0 in slot 0, negative numbers for empty slots.
    placed = place(_one_example(task), np.minimum(0, -np.arange(slots))[None], seq_len, vocabulary)
    features = task.objective.bind(None).features(placed, Draw(seed=0, epochs=np.zeros(1, np.int64)))
    for name, array in features.items():
        if array.shape[:1] != (1,):
            raise UserError(
                f"features() of {type(task.objective).__name__} returns {name!r} of the shape {list(array.shape)} for "
                "1 row; its first axis must be the batch"
            )
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
        for name, array in (core(placed) | features).items()
    }


def _one_example(task: Task) -> Ragged:
    """Return `[CLS] x [SEP]`, with all labels of the format both per example and per token."""
    by_class = (len(task.objective.classes),) if task.examples.labels_by_class else ()
    return Ragged(
        tokens=np.array([1, 4, 2], np.int32),
        segments=np.zeros(3, np.int32),
        special=np.array([True, False, True]),
        offsets=np.array([0, 3]),
        labels={name: np.zeros((1, *by_class), np.int32) for name in task.examples.labels},
        ids=np.zeros(1, np.int64),
        token_labels={name: np.zeros(3, np.int32) for name in task.examples.labels},
    )
