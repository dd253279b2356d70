"""The fine-tuning recipes with an encoder that reads less than they were written for."""

import collections
import logging

import jax
import jax.numpy as jnp
import pytest

from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import load
from bertjax.runtime.errors import UserError
from bertjax.training.optim.by_path import by_multiplier, leaves_of
from bertjax.training.program import Program
from tests import runs

CONFIGS = runs.CONFIG.parents[1] / "configs" / "finetune"
VARIANTS = {
    "classify": ("", "cls", "multi_label", "regression", "tags", "smoke"),
    "distill": (
        "soft",
        "pkd",
        "pkd_last",
        "logits",
        "tinybert_layers",
        "tinybert_soft",
        "internal",
        "internal_layers",
        "pkd-smoke",
    ),
    "few": ("", "cls", "smoke"),
    "glue": ("CoLA", "SST-2", "MRPC", "STS-B", "RTE", "QQP", "MNLI", "QNLI", "WNLI", "RTE+SST-2+STS-B"),
    "ner": ("", "smoke"),
    "tags": ("",),
    "qa": ("", "v2", "smoke", "v2-smoke"),
    "choices": ("", "race", "smoke", "race-smoke"),
    "embeddings": ("NLI", "STS-B", "pairs", "simcse", "NLI-smoke", "STS-B-smoke", "pairs-smoke", "simcse-smoke"),
}
RECIPES = [f"{name}.py:{variant}".rstrip(":") for name, variants in VARIANTS.items() for variant in variants]


def exported(folder, **model) -> str:
    """The settings of a model, which are all that a configuration copies of it."""
    config = from_dict({"model": {"preset": "google_tiny", **model}, "stages": [{"seq_len": 32}]})
    folder.mkdir()
    (folder / export.WEIGHTS).touch()
    export.write_manifest(folder, to_dict(config), 100, {})
    return f"init_from={folder}"


def test_every_recipe_is_tried():
    assert {path.stem for path in CONFIGS.glob("*.py")} == set(VARIANTS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_loads_with_32_positions(tmp_path, caplog, recipe):
    config = load(f"{CONFIGS / recipe}", [exported(tmp_path / "export", max_positions=32)])
    (stage,) = config.stages
    wanted = load(f"{CONFIGS / recipe}", [exported(tmp_path / "large", max_positions=512)])
    longest, before = (c.task.examples.longest(c.stages[0].seq_len) for c in (config, wanted))
    assert longest == min(32, before)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    lowered = f"stages.0.seq_len={stage.seq_len} (not {wanted.stages[0].seq_len})"
    assert len(messages) == (before > 32) and all(lowered in message for message in messages)


def test_tasks_that_are_trained_together(tmp_path):
    config = load(f"{CONFIGS / 'glue.py'}:RTE+SST-2+STS-B", [exported(tmp_path / "export", max_positions=512)])
    assert list(config.tasks) == ["RTE", "SST-2", "STS-B"] and config.task_name == "RTE" and config.has_own_heads
    assert [task.weight for task in config.tasks.values()] == [None] * 3
    assert [task.row_examples for task in config.tasks.values()] == [0, 32, 0]
    assert config.open_settings[-3:] == tuple(f"tasks.{name}.weight" for name in config.tasks)
    with pytest.raises(UserError, match="RTE[+]RTE names a task twice"):
        load(f"{CONFIGS / 'glue.py'}:RTE+RTE", [exported(tmp_path / "other")])


def test_settings_in_tokens_are_lowered_in_proportion(tmp_path, caplog):
    source = exported(tmp_path / "export", max_positions=32)
    load(f"{CONFIGS / 'qa.py'}", [source])
    changes = (
        "stages.0.seq_len=32 (not 384), tasks.qa.examples.stride=10 (not 128), "
        "tasks.qa.examples.max_question=5 (not 64)"
    )
    assert caplog.messages == [f"{tmp_path / 'export'} reads examples of at most 32 tokens: {changes}"]
    race = load(f"{CONFIGS / 'choices.py:race'}", [source])
    assert (race.stages[0].seq_len, race.task.examples.max_tokens) == (128, 32)


def test_a_length_on_the_command_line_is_not_lowered(tmp_path):
    source = exported(tmp_path / "export", max_positions=32)
    with pytest.raises(UserError, match="^stages.0.seq_len=64 exceeds model.max_positions=32; lower stages.0.seq_len"):
        load(f"{CONFIGS / 'ner.py'}", [source, "stages.0.seq_len=64"])


def test_encoders_without_a_position_table_read_any_length(tmp_path, caplog):
    config = load(
        f"{CONFIGS / 'qa.py'}",
        [exported(tmp_path / "export", max_positions=32, block={"kind": "modern"}, embeddings={"positions": "none"})],
    )
    assert config.stages[0].seq_len == 384 == config.model.max_positions and not caplog.messages


CLASSES = "tasks.classify.objective.classes=('a','b')"
CLASSES_OF = collections.defaultdict(lambda: CLASSES, {"few.py": CLASSES.replace("classes", "objective.classes")})
MODERN = {"block": {"kind": "modern"}, "embeddings": {"positions": "none", "segments": 0}}


@pytest.mark.parametrize("recipe", ["classify.py", "classify.py:tags", "few.py", "distill.py:soft"])
@pytest.mark.parametrize("model, inherited", [({}, set()), (MODERN, {"transform", "norm"})], ids=["bert", "modern"])
def test_only_parameters_that_start_from_random_values_have_the_rate_of_new_ones(tmp_path, recipe, model, inherited):
    source = exported(tmp_path / "export", **model)
    multipliers = load(f"{CONFIGS / recipe}", [source]).optimizer.multipliers
    # A student has the heads of its classification.
    same_heads = load(f"{CONFIGS / recipe.replace('distill.py:soft', 'classify.py')}", [source, CLASSES_OF[recipe]])
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), Program(same_heads, vocab_size=100).param_shapes)
    scaled, _ = by_multiplier(multipliers).update(params, None, params)
    rates = {path: float(leaf.max()) for path, leaf in leaves_of(scaled).items()}
    kept = {path.split("/")[2] for path, rate in rates.items() if path.startswith("heads/") and rate == 1.0}
    assert kept == inherited and {rate for path, rate in rates.items() if path.startswith("encoder/")} == {1.0}
    assert (500.0 if recipe == "few.py" else 20.0) in rates.values()
