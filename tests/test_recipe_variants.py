"""The variants of recipes, and what their sizes and phases have in common with each other and with the papers."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertjax.config.config_file import load
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.schedules import learning_rate
from bertjax.training.stages import warmup_segments
from tests import batches
from tests.test_recipes import CONFIGS, RECIPES

# Those with a variant for a laptop, and for eight chips of TPU v5e.
LAPTOPS = ("bert_base", "korean", "modernbert")
EIGHT_CHIPS = ("bert_base", "korean")


@pytest.mark.parametrize("name", RECIPES)
def test_the_small_variant_is_the_recipe_made_small(name):
    recipe, small = load(f"{CONFIGS / name}.py"), load(f"{CONFIGS / name}.py:smoke")
    assert small.tasks == recipe.tasks
    assert len(small.stages) == len(recipe.stages)
    assert small.optimizer.schedule.kind == recipe.optimizer.schedule.kind
    for field in ("kind", "b1", "b2", "epsilon", "weight_decay", "clip_norm"):
        assert getattr(small.optimizer, field) == getattr(recipe.optimizer, field)
    for field in ("kind", "lowercase"):
        assert getattr(small.data.tokenizer, field) == getattr(recipe.data.tokenizer, field)
    assert (small.model.dropout, small.model.attention_dropout) == (
        recipe.model.dropout,
        recipe.model.attention_dropout,
    )


@pytest.mark.parametrize("name", LAPTOPS)
def test_the_variant_for_a_laptop_is_one_stage_of_the_recipe(name):
    """Of the same tasks and kinds, on text that comes with bertjax, with steps of less than a second on a CPU."""
    recipe, small = load(f"{CONFIGS / name}.py"), load(f"{CONFIGS / name}.py:laptop")
    assert small.tasks == recipe.tasks and small.data.tokenizer.kind == recipe.data.tokenizer.kind
    assert small.data.corpus.startswith("embedded:") and small.model.block.kind == recipe.model.block.kind
    assert small.optimizer.schedule.kind == recipe.optimizer.schedule.kind
    (stage,) = small.stages
    encoder = small.encoder(small.expected_vocab_size, "cpu")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(batches.param_shapes(small.task.objective, encoder)))
    assert 6 * parameters * stage.batch * stage.seq_len < 1e11  # FLOPs of a step, word table included
    warmup_segments(small.stages, small.optimizer)  # raises if warm-up and decay do not fit
    assert f"\n| `{name}.py:laptop` | " in (CONFIGS / f"{name}.py").read_text()


@pytest.mark.parametrize("name", EIGHT_CHIPS)
def test_the_variant_for_eight_chips_trains_the_same(name):
    recipe, on_eight = load(f"{CONFIGS / name}.py"), load(f"{CONFIGS / name}.py:v5e-8")
    assert dataclasses.replace(on_eight, runtime=recipe.runtime) == recipe
    assert on_eight.runtime != recipe.runtime and all(stage.batch % 8 == 0 for stage in on_eight.stages)
    assert f"\n| `{name}.py:v5e-8` | " in (CONFIGS / f"{name}.py").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_the_docstring_has_the_commands_that_train_and_check_it(name):
    text = (CONFIGS / f"{name}.py").read_text()
    assert f"python -m bertjax.train --distributed --config=configs/{name}.py " in text
    assert re.search(rf"python -m bertjax compile --config=configs/{name}.py --topology=v5e:\d+x\d+\n", text)
    assert f"`{name}.py:smoke`" in text


def test_bert_trains_a_million_steps_nine_tenths_of_them_on_short_rows():
    for name in ("bert_base", "bert_large"):
        stages = load(f"{CONFIGS / name}.py").stages
        assert [(stage.steps, stage.seq_len, stage.batch) for stage in stages] == [
            (900_000, 128, 256),
            (100_000, 512, 256),
        ]


def test_lamb_trains_8599_steps_and_rises_in_both_stages():
    first, second = load(f"{CONFIGS / 'bert_lamb.py'}").stages
    assert first.steps + second.steps == 8599
    assert (first.batch, second.batch) == (65_536, 32_768)
    assert second.learning_rate and second.warmup_steps


def test_roberta_large_has_its_own_rate():
    base, large = load(f"{CONFIGS / 'roberta_base.py'}"), load(f"{CONFIGS / 'roberta_base.py'}:large")
    embeddings = large.model.embeddings
    assert large.model.layers == 24 and (embeddings.position_offset, embeddings.segments) == (2, 0)
    assert (large.optimizer.learning_rate, large.optimizer.warmup_steps) == (4e-4, 30_000)
    assert large.tasks == base.tasks and large.stages == base.stages


def test_the_sizes_of_albert_differ_only_in_the_encoder():
    base = load(f"{CONFIGS / 'albert_base.py'}")
    assert (base.model.layers, base.model.embeddings.width, base.model.sharing) == (12, 128, "all")
    assert base.stages[0].batch * base.stages[0].steps == 512_000_000
    for size, width in (("large", 1024), ("xlarge", 2048), ("xxlarge", 4096)):
        other = load(f"{CONFIGS / 'albert_base.py'}:{size}")
        assert other.model.width == width and other.model.sharing == "all"
        assert (other.tasks, other.stages, other.optimizer) == (base.tasks, base.stages, base.optimizer)


TOKENS = {"modernbert": (1719, 250, 50), "ettin": (1700, 250, 50), "mmbert": (2300, 600, 100)}


@pytest.mark.parametrize("name", TOKENS)
def test_three_phases_have_the_published_tokens_and_one_decay_over_the_last(name):
    config = load(f"{CONFIGS / name}.py")
    billions = [stage.steps * stage.batch * stage.seq_len / 1e9 for stage in config.stages]
    assert billions == pytest.approx(TOKENS[name], rel=1e-4)
    assert config.optimizer.schedule.decay_steps == config.stages[2].steps


def test_modernbert_large_continues_at_a_tenth_of_its_rate():
    base, large = (load(f"{CONFIGS / 'modernbert'}.py{size}") for size in ("", ":large"))
    assert (large.model.layers, large.model.width) == (28, 1024)
    peaks = [(segment.peak, segment.steps) for segment in warmup_segments(large.stages, large.optimizer)]
    assert peaks == [(5e-4, 190_735), (5e-5, 173_569 + 52_982 + 10_596)]
    assert sum(stage.steps for stage in large.stages) == sum(stage.steps for stage in base.stages)


def test_the_sizes_of_ettin_differ_in_encoder_rate_and_rotary_base():
    for size, layers, peak, local in (("17m", 7, 3e-3, 1e4), ("68m", 19, 3e-3, 0.0), ("400m", 28, 5e-4, 0.0)):
        config = load(f"{CONFIGS / 'ettin'}.py:{size}")
        assert (config.model.layers, config.optimizer.learning_rate) == (layers, peak)
        assert config.stages[1].learning_rate == peak / 2
        assert [stage.local_rotary_base for stage in config.stages] == [1e4, local, 0.0]


# {recipe: share of a weight that a step without gradients takes off, at the end of the first and of the second stage}.
# The authors' StableAdamW takes off rate / peak * weight decay, where the peak stays that of the first phase.
DECAYS = {
    "modernbert": (1e-5, 1e-5 * 3 / 8),
    "modernbert:large": (1e-5, 1e-6),
    "ettin:17m": (3e-4, 1.5e-4),
    "ettin:68m": (3e-4, 1.5e-4),
    "ettin:150m": (1e-5, 5e-6),
    "ettin:400m": (1e-5, 5e-6),
    "ettin:1b": (5e-5, 2.5e-5),
    "mmbert": (8e-5, 8e-5),
    "mmbert:small": (8e-5, 4e-5),
}


@pytest.mark.parametrize("recipe", DECAYS)
def test_a_step_without_gradient_takes_the_published_share_off_a_kernel(recipe):
    name, _, variant = recipe.partition(":")
    config = load(f"{CONFIGS / name}.py" + (f":{variant}" if variant else ""))
    params = {"heads": {"kernel": jnp.full((3, 2), 0.5)}}
    optimizer = make_optimizer(config.optimizer)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    rate = learning_rate(config.optimizer.schedule, warmup_segments(config.stages, config.optimizer))
    first, second = config.stages[:2]
    for step, share in zip((first.steps - 1, first.steps + second.steps - 1), DECAYS[recipe], strict=True):
        np.testing.assert_allclose(rate(jnp.array(step)) * updates["heads"]["kernel"] / 0.5, share, rtol=1e-5)


def test_neobert_starts_with_the_deviation_of_the_authors_uniform_values():
    encoder = load(f"{CONFIGS / 'neobert'}.py").model
    values = nn.initializers.truncated_normal(encoder.init_stddev)(jax.random.key(0), (1000, 200))
    assert float(values.std()) == pytest.approx(0.02 / 3**0.5, rel=0.01)


def test_each_phase_of_mmbert_is_a_branch_of_the_one_before():
    """With more languages that are drawn more evenly, and with the same stages up to its own."""
    whole, *phases = (load(f"{CONFIGS / 'mmbert'}.py{of}") for of in ("", ":phase1", ":phase2", ":phase3"))
    for number, phase in enumerate(phases, 1):
        assert phase.stages == whole.stages[:number]
        assert phase.model.replace({"block": whole.model.block}) == whole.model
    assert [phase.data.smoothing for phase in phases] == [0.7, 0.5, 0.3]
    assert [phase.optimizer.schedule.decay_steps for phase in phases] == [0, 0, whole.stages[2].steps]
    first, second, third = ({*phase.data.sources} for phase in phases)
    assert first < second < third == {*whole.data.sources}
    text = (CONFIGS / "mmbert.py").read_text()
    assert f"phase1@{whole.stages[0].steps} " in text
    assert f"phase2@{whole.stages[0].steps + whole.stages[1].steps} " in text
    small = load(f"{CONFIGS / 'mmbert'}.py:small-phase2")
    assert (small.model.width, small.stages[1].learning_rate) == (384, 4e-4)
    schedule = load(f"{CONFIGS / 'mmbert'}.py:small").optimizer.schedule
    assert (schedule.decay, schedule.floor, schedule.decay_steps) == ("linear", 0.04, whole.stages[2].steps)
