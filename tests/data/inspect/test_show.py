"""Printed rows show exactly what is in the batch."""

import re

import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.formats.pairs import SegmentPairs
from bertjax.data.inspect.report import draw_packing, show
from bertjax.data.pipeline import Feed
from bertjax.training.feeds import Feeds

ROWS = 20


@pytest.fixture(scope="module")
def feed(store) -> Feed:
    task = Task(examples=SegmentPairs(short_seq_prob=0.9), row_examples=4)
    return Feeds(Config(tasks={"bert": task}), store).feed("train", 48)


def test_every_example_segment_and_prediction_is_shown(store, feed):
    output, batch = show(feed, store.tokenizer, ROWS), feed.batch(np.arange(ROWS))
    assert len(re.findall(r"^row ", output, re.M)) == ROWS
    examples = batch["example_ids_BN"][batch["example_ids_BN"] >= 0]
    assert [int(number) for number in re.findall(r"^  example (\d+)", output, re.M)] == examples.tolist()
    labels = batch["nsp_labels_BN"][batch["example_ids_BN"] >= 0]
    assert [int(label) for label in re.findall(r"nsp=(\d)", output)] == labels.tolist()
    assert len(re.findall(r"^    [AB]  ", output, re.M)) == 2 * len(examples)
    rows = output.split("\nrow ")[1:]
    for row, text in enumerate(rows):
        assert text.count("‹") == (batch["mlm_weights_BK"][row] > 0).sum()
        assert f"{(batch['examples_BT'][row] > 0).sum()} of 48 positions" in text
        kept = batch["mlm_labels_BK"][row] == np.take(batch["tokens_BT"][row], batch["mlm_positions_BK"][row])
        assert text.count("‹=›") == (kept & (batch["mlm_weights_BK"][row] > 0)).sum()


def test_with_the_labels_filled_in_there_are_no_other_spaces(store, feed):
    """Punctuation is a word of its own but stays at the word before it."""
    output, tokenizer = show(feed, store.tokenizer, ROWS), store.tokenizer
    shown = re.findall(r"^    A  \[CLS\] (.*) \[SEP\]$", output, re.M)
    assert len(shown) > 10 and any("‹.›" in line or ".‹" in line for line in shown)
    sentences = tokenizer.decode(store.split("train").tokens.tolist())
    for line in shown:
        filled = re.sub(r"(\[MASK\]|[^\s‹›\[\]]*?)‹=›", r"\1", line)
        filled = re.sub(r"\[MASK\]‹([^›]+)›", r"\1", filled)
        assert "‹" in filled or filled in sentences  # a random token has no mark at its start


def test_the_picture_is_drawn(feed, tmp_path):
    draw_packing(feed, tmp_path / "packing.png")
    assert (tmp_path / "packing.png").read_bytes().startswith(b"\x89PNG")
