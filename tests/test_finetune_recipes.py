"""The fine-tuning recipes with an encoder that reads less than they were written for."""

import json
import logging

import pytest

from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import load
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
    manifest = {"format_version": export.FORMAT_VERSION, "config": to_dict(config), "vocab_size": 100, "numbers": {}}
    (folder / export.MANIFEST).write_text(json.dumps(manifest))
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


CLASSES = "tasks.classify.objective.classes=('a','b')"
