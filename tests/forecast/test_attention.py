"""The effect of the attention implementation on a compiled step."""

import functools
import re
from pathlib import Path

import pytest

from bertjax import config_file
from bertjax.forecast import topologies
from bertjax.training.program import Program

RECIPE = Path(__file__).parents[2] / "configs" / "bert_large.py"
# A width of heads as in BERT-Large and every part of its step, and nothing else that is 512 long.
SMALL = ("layers=3", "width=128", "heads=2", "feedforward=384", "vocab_size=1000")


@functools.cache
def compiled(variant: str) -> str:
    """The recipe's second stage, rows of 512 tokens, of a small model on one v5e chip."""
    overrides = [f"model.{setting}" for setting in SMALL] + ["stages.1.batch=4"]
    recipe = config_file.load(f"{RECIPE}:{variant}", overrides)
    program = Program(recipe, 1000, topologies.parse("v5e:1x1").devices())
    batches = program.task.abstract_batches(recipe.stages[1], 1)
    return program.task.chunk.lower(program.abstract_state, None, batches).compile().as_text()


def kernels(text: str) -> set[str]:
    """Splash attention's kernels: `fwd`, and `dkv` with `dq` in it."""
    return set(re.findall(r"%splash_mha_([a-z]+)_\S+ = [^\n]* custom-call\(", text))


def square(text: str) -> set[str]:
    """Return every shape with a number for each pair of tokens of a row, fused or not."""
    return set(re.findall(r"\w+\[[\d,]*512,512\]", text))


@pytest.mark.slow
def test_splash_stores_no_token_pairs():
    text = compiled("splash")
    assert square(text) == set()
    assert kernels(text) == {"fwd", "dkv"}


@pytest.mark.slow
def test_plain_attention_stores_token_pairs():
    text = compiled("")
    assert "bf16[4,2,512,512]" in square(text) and not kernels(text)
