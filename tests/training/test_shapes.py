"""Shapes of a batch without data: those of the batches that come."""

import pytest

from bertjax.config.config import Task
from bertjax.data.labeled.choices import Choices
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.objectives.finetuning.embeddings import EmbeddingRegression
from bertjax.objectives.finetuning.multiple_choice import MultipleChoice
from bertjax.training.shapes import batch_shapes

THREE = MultipleChoice(("0", "1", "2"))


@pytest.mark.parametrize(
    "task, slots",
    [
        (Task(EmbeddingRegression(), SiamesePairs(), row_examples=1), 2),
        (Task(EmbeddingRegression(), SiamesePairs(), row_examples=5), 4),
        (Task(THREE, Choices(), row_examples=2), 3),
        (Task(THREE, Choices()), 6),  # one for 16 tokens are eight
    ],
)
def test_a_row_holds_whole_groups(task, slots):
    shapes = batch_shapes(task, vocab_size=50, seq_len=128, rows=4)
    assert shapes["example_ids_BN"].shape == (4, slots)
    weights = shapes.get("weights_BP", shapes.get("weights_BN"))
    assert weights.shape == (4, slots // 2 if "weights_BP" in shapes else slots)
