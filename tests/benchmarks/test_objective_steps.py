"""The cost of a step of other objectives: every arm trains."""

import pytest

from benchmarks.objective_steps import ARMS, VOCABULARY, measure
from bertjax.models.config import EncoderConfig


@pytest.mark.slow
def test_every_arm_trains_a_step_in_every_round():
    encoder = EncoderConfig(vocab_size=VOCABULARY.size, layers=1, width=16, heads=2, feedforward=32, max_positions=16)
    seconds = measure(encoder, batch=4, seq_len=16, steps=1, rounds=2)
    assert seconds.keys() == ARMS.keys() and all(len(rounds) == 2 for rounds in seconds.values())
