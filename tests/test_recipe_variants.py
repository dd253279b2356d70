"""The variants of recipes, and what their sizes and phases have in common with each other and with the papers."""

import re

import pytest

from bertjax.config.config_file import load
from tests.test_recipes import CONFIGS, RECIPES


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
