"""The arrays of a batch before there is any corpus: their names, shapes and dtypes."""

import jax
import numpy as np

from bertjax.config import Task
from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.plan import Spec


def batch_shapes(task: Task, vocab_size: int, seq_len: int, rows: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a batch of a task, from the features of one made-up example.

    Args:
      task: whose objective gives the features.
      vocab_size: V.
      seq_len: T.
      rows: B. N is the most examples that the task lets share a row, in whole groups.
    """
    spec, group = Spec("train", task.examples, seq_len, seed=0, row_examples=task.row_examples), task.objective.group
    slots = max(1, spec.most // group) * group
    vocabulary = Vocabulary(vocab_size, pad_id=0, cls_id=1, sep_id=2, mask_id=3, special_ids=(0, 1, 2, 3))
    placed = place(_one_example(task), np.minimum(0, -np.arange(slots))[None], seq_len, vocabulary)
    features = task.objective.bind(None).features(placed, Draw(seed=0, epochs=np.zeros(1, np.int64)))
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
        for name, array in (core(placed) | features).items()
    }


def _one_example(task: Task) -> Ragged:
    """[CLS] x [SEP], with every label that the examples carry, of the example and of its tokens."""
    return Ragged(
        tokens=np.array([1, 4, 2], np.int32),
        segments=np.zeros(3, np.int32),
        special=np.array([True, False, True]),
        offsets=np.array([0, 3]),
        labels={name: np.zeros(1, np.int32) for name in task.examples.labels},
        ids=np.zeros(1, np.int64),
        token_labels={name: np.zeros(3, np.int32) for name in task.examples.labels},
    )
