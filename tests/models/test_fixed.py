"""Fixed attention maps: against loops over places, within packed examples, and as a part of encoders and runs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import convert
from bertjax.models.bert import BertBlock
from bertjax.models.encoder import Encoder
from bertjax.models.fixed import FIXED_PATTERNS
from bertjax.runtime import command_line
from tests import batches, runs
from tests.models.encoding import params_of

HEADS = len(FIXED_PATTERNS) + 1
CONFIG = dataclasses.replace(
    batches.ENCODER, layers=2, width=2 * HEADS, heads=HEADS, block=BertBlock(FIXED_PATTERNS), feedforward=24
)
# Three examples of 5, 1 and 4 tokens, and padding.
EXAMPLES_BT = np.array([[1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 0, 0]])
TOKENS_BT = np.arange(10, 22)[None]
POSITIONS_BT = np.array([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 0]])


def map_of(pattern: str, length: int) -> np.ndarray:
    """The map of one example, token by token."""
    weights = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            weights[i, j] = {
                "current": j == i,
                "previous": j == i - 1,
                "next": j == i + 1,
                "left": (j + 1) ** 3 if j <= i - 2 else 0,
                "right": (length - j) ** 3 if j >= i + 2 else 0,
                "start": (length - j) ** 3,
                "end": (j + 1) ** 3,
            }[pattern]
        if not weights[i].any():
            weights[i, i] = 1
    return weights / weights.sum(axis=1, keepdims=True)


def row_of(pattern: str) -> np.ndarray:
    """The map of the packed row: blocks of its examples; padding is one more."""
    row = np.zeros(2 * [EXAMPLES_BT.shape[1]])
    for example in (1, 2, 3, 0):
        places = np.flatnonzero(EXAMPLES_BT[0] == example)
        row[np.ix_(places, places)] = map_of(pattern, len(places))
    return row


@functools.partial(jax.jit, static_argnames="config")
def encode(config, params, tokens_BT, examples_BT, positions_BT, read_BK=None, key=None):
    variables = {"params": params, "captured": dict.fromkeys(["attention", "values", "context"])}
    arguments = tokens_BT, None, positions_BT, examples_BT
    encoded, state = Encoder(config).apply(variables, *arguments, read_BK=read_BK, key=key, mutable=["captured"])
    return encoded.hidden, state["captured"]


@pytest.mark.slow
def test_captured_maps_are_those_of_loops_and_stay_within_their_examples():
    hidden_BTD, captured = encode(CONFIG, params_of(CONFIG), TOKENS_BT, EXAMPLES_BT, POSITIONS_BT)
    attention_LBHTT = np.asarray(captured["attention"])
    assert attention_LBHTT.shape == (2, 1, HEADS, 12, 12)
    for index, pattern in enumerate(FIXED_PATTERNS):
        for layer in range(2):
            np.testing.assert_allclose(attention_LBHTT[layer, 0, index], row_of(pattern), atol=1e-6, err_msg=pattern)
    context_BTHD = np.einsum("bhqt,bthd->bqhd", attention_LBHTT[0], captured["values"][0])
    np.testing.assert_allclose(captured["context"][0], context_BTHD, atol=1e-6)

    for example in (1, 2, 3):
        places = np.flatnonzero(EXAMPLES_BT[0] == example)
        alone = TOKENS_BT[:, places], np.ones((1, len(places)), np.int32), POSITIONS_BT[:, places]
        alone_BTD, _ = encode(CONFIG, params_of(CONFIG), *alone)
        np.testing.assert_allclose(alone_BTD[0], hidden_BTD[0, places], atol=1e-5)


@pytest.mark.slow
def test_a_run_trains_resumes_and_is_opened(flags, tmp_path, capsys):
    brief = [*flags, "--config.stages.0.steps=6", "--config.eval.every=6", f"--workdir={tmp_path}"]
    fixed = ["--config.model.heads=4", "--config.model.block.fixed_heads=['previous','next','left']"]
    assert runs.call(*brief, *fixed) == 0
    assert "hf is not written: " in (printed := capsys.readouterr().out) and "add --encoder-only" not in printed
    weights = runs.weights(tmp_path)
    (tmp_path / "export" / "bertjax.json").unlink()
    assert runs.call(*brief, *fixed) == 0, "the same settings resume the run"
    assert runs.weights(tmp_path) == weights
    model = bertjax.load(tmp_path / "export")
    assert model.module.config.block.fixed_heads == ("previous", "next", "left")
    assert model.params["layers"]["attention"]["key"]["kernel"].shape == (2, 32, 8)
    assert runs.call(*brief, "--config.model.heads=4") == 2
    assert "model.block.fixed_heads" in capsys.readouterr().err
    assert (
        command_line.exit_code_of(lambda: convert.main([f"--from={tmp_path / 'export'}", f"--to={tmp_path / 'hf'}"]))
        == 2
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "model.block.fixed_heads=['previous', 'next', 'left']" in error, error
