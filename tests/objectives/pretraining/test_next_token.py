"""Causal and masked language modeling with one head: what each reads and predicts, and a run that trains both."""

import dataclasses

import numpy as np
import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.inference.likelihood import is_causal
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.next_token import MaskedNextToken, NextToken
from tests import batches, ragged
from tests.interop import models
from tests.objectives import groups

ENCODER = dataclasses.replace(batches.ENCODER, init_stddev=0.5)
LENGTHS, ROWS = [9, 5, 12], [[0, 1], [2, -1]]


def made(objective):
    inputs = groups.examples(LENGTHS, labels={})
    batch = groups.batch_of(objective, inputs, ROWS)
    params = batches.filled(batches.param_shapes(objective, ENCODER, batch))
    return batch, params


def test_the_causal_task_computes_what_a_causal_encoder_does():
    batch, params = made(NextToken())
    model, causal = (
        NextToken().model(ENCODER),
        CausalLM().model(dataclasses.replace(ENCODER, direction="left_to_right")),
    )
    np.testing.assert_array_equal(NextToken().apply(model, params, batch), CausalLM().apply(causal, params, batch))


@pytest.mark.slow
def test_a_masked_token_is_predicted_from_the_state_before_it():
    batch, params = made(MaskedNextToken())
    model = MaskedNextToken().model(ENCODER)
    [logits_BKV] = MaskedNextToken().apply(model, params, batch).values()

    # The same parameters under the name of masked language modeling's head, read at every column.
    every_BK = np.broadcast_to(np.arange(groups.T, dtype=np.int32), batch["tokens_BT"].shape)
    renamed = params | {"heads": {"mlm": params["heads"]["clm"]}}
    all_BTV = MaskedLM().apply(MaskedLM().model(ENCODER), renamed, batch | {"mlm_positions_BK": every_BK})["mlm"]
    used = 0
    for row, place in zip(*np.nonzero(batch["mntp_weights_BK"]), strict=True):
        column = batch["mntp_positions_BK"][row, place]
        np.testing.assert_allclose(logits_BKV[row, place], all_BTV[row, column - 1], atol=1e-5)
        assert batch["examples_BT"][row, column - 1] == batch["examples_BT"][row, column]
        used += 1
    assert used >= len(LENGTHS)


def test_the_first_token_of_an_example_is_not_predicted():
    """Without a [CLS] in front, the state before it belongs to another example."""
    inputs = groups.examples(LENGTHS, labels={})
    inputs = dataclasses.replace(inputs, special=np.zeros_like(inputs.special))
    objective = MaskedNextToken()
    objective = dataclasses.replace(objective, masking=dataclasses.replace(objective.masking, rate=0.9))
    batch = groups.batch_of(objective, inputs, ROWS)
    columns_BK, used_BK = batch["mntp_positions_BK"], batch["mntp_weights_BK"] > 0
    indices_BK = np.take_along_axis(batch["positions_BT"], columns_BK, axis=1)
    assert used_BK.sum() >= 0.9 * sum(LENGTHS) - 2 * len(LENGTHS) and indices_BK[used_BK].min() == 1
    # A token that is not predicted is not hidden from the others either.
    is_first_BT = (batch["positions_BT"] == 0) & (batch["examples_BT"] > 0)
    assert not (batch["tokens_BT"][is_first_BT] == ragged.VOCABULARY.mask_id).any()


@pytest.mark.parametrize(
    "kinds, direction, expected",
    [
        (["masked_next_token"], "bidirectional", False),
        (["masked_next_token", "next_token"], "bidirectional", True),
        (["next_token"], "bidirectional", True),
        (["causal"], "left_to_right", True),
    ],
)
def test_only_a_model_that_was_trained_so_is_scored_from_left_to_right(kinds, direction, expected):
    """All of them have the same head."""
    tokens = models.trained()
    tasks = {kind: {"objective": {"kind": kind}, "examples": {"kind": "full_sentences"}} for kind in kinds}
    size = {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 40, "direction": direction}
    config = from_dict({"model": size, "tasks": tasks, "stages": [{"seq_len": 40}]})
    export = Export(to_dict(config), config.encoder(tokens.vocab_size, "cpu"), {"heads": {"clm": {}}}, tokens, {})
    assert is_causal(export) is expected
