"""The step as the TPU compiler writes it for four chips that are not there: what is sent, and what is drawn where."""

import re

import pytest

from bertjax.config.config import from_dict
from bertjax.forecast import topologies
from bertjax.training.setup import compile_chunk, make_setups, shapes_of_batches

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install '.[tpu]'")
pytestmark = pytest.mark.slow

CHIPS, ROWS, T, V, D, L, F = 4, 8, 256, 1024, 128, 2, 512


def compiled(strategy: str, dropout: float) -> str:
    """The text of one chip's program; the sizes of vocabulary, rows and layers are those of nothing else."""
    model = {"layers": L, "width": D, "heads": 2, "feedforward": F, "max_positions": T, "vocab_size": V}
    config = from_dict(
        {
            "model": model | {"dropout": 0.1, "attention_dropout": dropout},
            "stages": [{"steps": 20_000, "seq_len": T, "batch": CHIPS * ROWS}],
            "runtime": {"strategy": strategy},
        }
    )
    [setup] = make_setups(config, V, topologies.parse("v5e:2x2").devices())
    batches = shapes_of_batches(setup, "bert", stage=0, steps=1)
    return compile_chunk(setup, "bert", stage=0).lower(setup.shapes, None, batches).compile().as_text()


@pytest.fixture(scope="module")
def gathered() -> str:
    return compiled("gathered", dropout=0.1)


def results(text: str, operation: str) -> list[str]:
    """Return the shapes of an operation's results; an asynchronous one is in several fusions."""
    results_of = re.findall(rf"= (.+?) {operation}(?:-start)?\(", text)
    return [shape for shapes in results_of for shape in re.findall(r"\w+\[[\d,]*\]", shapes)]


def test_weights_are_gathered_only_in_bfloat16(gathered):
    shapes = results(gathered, "all-gather")
    assert f"bf16[{L},{D},{F}]" in shapes
    assert not [shape for shape in shapes if shape.startswith("f32")]


def test_the_gradient_of_the_embedding_is_reduced_once(gathered):
    """The table is tied: the embedding and the head both use it."""
    reductions = results(gathered, "all-reduce") + results(gathered, "reduce-scatter")
    of_table = [shape for shape in reductions if re.search(rf"\[({V},\d+|\d+,{V})\]", shape)]
    assert len(of_table) == 1 and of_table[0].startswith("bf16")


def test_fsdp_never_gathers_all_layers():
    """Its gathers are of one layer, inside the loops over layers."""
    shapes = results(compiled("fsdp", dropout=0.1), "all-gather")
    assert f"bf16[{D},{F}]" in shapes or f"bf16[1,{D},{F}]" in shapes
    assert not [shape for shape in shapes if shape.startswith("f32") or f"[{L},{D},{F}]" in shape]


def test_no_square_of_the_row_is_stored(gathered):
    assert "tpu_custom_call" in gathered and not re.search(rf"\[[\d,]*{T},{T}\]", gathered)
