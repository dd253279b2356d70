"""The effect of the attention implementation on a compiled step."""

import functools
import re
from pathlib import Path

import pytest

from bertjax.config import config_file
from bertjax.forecast import topologies
from bertjax.training.program import Program

RECIPE = Path(__file__).parents[2] / "configs" / "bert_large.py"
# A width of heads as in BERT-Large and every part of its step, and nothing else that is 512 long.
SMALL = ("layers=3", "width=128", "heads=2", "feedforward=384", "vocab_size=1000")


@functools.cache
def compiled(implementation: str) -> str:
    """The recipe's second stage, rows of 512 tokens, of a small model on one v5e chip."""
    overrides = [f"model.{setting}" for setting in SMALL]
    overrides += ["stages.1.batch=4", f"runtime.attention={implementation}"]
    if implementation == "splash":
        overrides.append("model.attention_dropout=0")
    recipe = config_file.load(str(RECIPE), overrides)
    program = Program(recipe, 1000, topologies.parse("v5e:1x1").devices())
    batches = program.task.abstract_batches(recipe.stages[1], 1)
    return program.task.chunk.lower(program.abstract_state, None, batches).compile().as_text()


def kernels(text: str) -> set[str]:
    """Return the names of kernels. Splash attention has `fwd`, and `dkv` with `dq` in it."""
    calls = re.findall(r"%(\S+) = [^\n]* custom-call\([^\n]*tpu_custom_call", text)
    return {name for call in calls for name in re.findall("splash_mha_[a-z]+|fused_attention_[a-z]+", call)}


def square(text: str) -> set[str]:
    """Return every shape with a number for each pair of tokens of a row, fused or not."""
    return set(re.findall(r"\w+\[[\d,]*512,512\]", text))


KERNELS = {
    "auto": {"fused_attention_forward", "fused_attention_backward"},  # with dropout on attention, as published
    "splash": {"splash_mha_fwd", "splash_mha_dkv"},
}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", KERNELS)
def test_kernels_store_no_token_pairs(implementation):
    text = compiled(implementation)
    assert square(text) == set()
    assert kernels(text) == KERNELS[implementation]


@pytest.mark.slow
def test_plain_attention_stores_token_pairs():
    text = compiled("plain")
    assert "bf16[4,2,512,512]" in square(text) and not kernels(text)
