"""The recipes in configs/, made small: each goes the whole way on the corpus that comes with bertjax."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from bertjax.config.config import Config, to_dict
from bertjax.config.config_file import load
from bertjax.models.presets import PRESETS
from bertjax.training.run.workdir import Workdir, read_jsonl
from tests import frozen, runs
from tests.object_store import ObjectStore

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = (
    "bert_base",
    "bert_large",
    "bert_lamb",
    "roberta_base",
    "albert_base",
    "electra_small",
    "causal",
    "spanbert",
    "modernbert",
    "ettin",
    "mmbert",
    "neobert",
    "deberta_v3",
    "ib_bert",
    "ernie",
    "ernie2",
    "structbert",
    "stacking",
    "xlnet",
    "mpnet",
)
# Those whose results are compared with `tests/frozen.json`.
FROZEN = ("albert_base", "electra_small", "xlnet")
# The others that are trained. Made small, bert_large is bert_base.
OTHERS = tuple(name for name in RECIPES if name not in (*FROZEN, "bert_large"))
# Those whose layers and objectives differ most from BERT are analyzed by every part, the others by two.
EVERY_PART = ("electra_small", "xlnet")
# Those with the encoder of bert_base, whose layers are analyzed and probed with that recipe.
ENCODER_OF_BERT = ("bert_lamb", "roberta_base", "ernie", "spanbert", "structbert", "stacking")
# Those with the layer and the objective of modernbert, which is analyzed.
AS_MODERNBERT = ("ettin", "mmbert")
# The class of transformers that opens what a recipe leaves; the heads and encoders of the others have none.
CLASSES = {
    "bert_base": "BertForPreTraining",
    "bert_large": "BertForPreTraining",
    "bert_lamb": "BertForPreTraining",
    "stacking": "BertForPreTraining",
    "albert_base": "AlbertForPreTraining",
    "electra_small": "ElectraForPreTraining",
    "deberta_v3": "DebertaV2Model",
    "roberta_base": "RobertaForMaskedLM",
    "causal": "BertLMHeadModel",
    "xlnet": "XLNetLMHeadModel",
    "mpnet": "MPNetForMaskedLM",
}

# {recipe: {setting: published value}}; the docstring of each recipe names the sources.
PUBLISHED = {
    "albert_base": {
        **{"optimizer.kind": "lamb", "optimizer.learning_rate": 0.00176, "optimizer.warmup_steps": 3125},
        **{"stages.0": (125_000, 512, 4096), "tasks.albert.objective.masking.longest": 3},
    },
    "bert_base": {
        **{"optimizer.learning_rate": 1e-4, "optimizer.b1": 0.9, "optimizer.b2": 0.999, "optimizer.epsilon": 1e-6},
        **{"optimizer.weight_decay": 0.01, "optimizer.clip_norm": 1.0, "optimizer.warmup_steps": 10_000},
    },
    "deberta_v3": {
        **{"optimizer.learning_rate": 5e-4, "optimizer.b2": 0.98, "optimizer.warmup_steps": 10_000},
        **{"optimizer.weight_decay": 0.01, "optimizer.epsilon": 1e-6, "stages.0": (500_000, 512, 8192)},
        **{"tasks.electra.objective.generator_share": 1.0, "tasks.electra.objective.generator_depth": 0.5},
        **{"tasks.electra.objective.embedding_sharing": "gradient_disentangled", "model.norm_epsilon": 1e-7},
        **{"tasks.electra.objective.rtd_coefficient": 50.0, "data.tokenizer.vocab_size": 128_100},
    },
    "ernie2": {
        **{"optimizer.learning_rate": 5e-5, "optimizer.warmup_steps": 4000, "optimizer.b2": 0.98},
        **{"optimizer.schedule.kind": "inverse_sqrt", "stages.4.learning_rate": 5e-5, "stages.4.warmup_steps": 4000},
        **{"stages.0": (200_000, 512, 768), "stages.4": (200_000, 512, 768)},
    },
    "ettin": {
        **{"optimizer.learning_rate": 8e-4, "stages.1.learning_rate": 4e-4, "stages.1.local_rotary_base": 0.0},
        **{"optimizer.warmup_tokens": 3e9, "optimizer.schedule.floor": 0.04, "stages.0": (360_277, 1024, 4608)},
        **{"stages.2.masking_rate": 0.15, "model.block.local_rotary_base": 1.6e5, "stages.0.local_rotary_base": 1e4},
    },
    "mmbert": {
        **{"optimizer.learning_rate": 8e-4, "optimizer.b2": 0.95, "optimizer.epsilon": 1e-8},
        **{"optimizer.schedule.decay": "1-sqrt", "optimizer.schedule.floor": 0.02},
        **{"stages.1": (15_895, 8192, 4608), "stages.2": (2649, 8192, 4608), "data.tokenizer.vocab_size": 256_000},
        **{"tasks.mlm.objective.masking.rate": 0.3, "stages.1.masking_rate": 0.15, "stages.2.masking_rate": 0.05},
    },
    "modernbert": {
        **{"optimizer.learning_rate": 8e-4, "optimizer.b2": 0.98},
        **{
            "data.tokenizer.vocab_size": 50_368,
            "tasks.mlm.objective.masking.rate": 0.3,
            **{"stages.0.rotary_base": 1e4, "model.block.rotary_base": 1.6e5, "model.block.local_rotary_base": 1e4},
            **{"stages.1.learning_rate": 3e-4, "stages.2.learning_rate": 0.0, "optimizer.schedule.floor": 0.001},
        },
    },
    "mpnet": {
        **{"optimizer.learning_rate": 5e-4, "optimizer.b2": 0.98, "optimizer.clip_norm": 0.0},
        **{"stages.0": (500_000, 512, 8192), "tasks.mpnet.objective.masking.kind": "words"},
    },
    "neobert": {
        **{"optimizer.learning_rate": 6e-4, "optimizer.b2": 0.95, "optimizer.weight_decay": 0.1},
        **{"stages.0": (1_000_000, 1024, 2048), "stages.1": (50_000, 4096, 512), "model.feedforward": 2048},
        **{"tasks.mlm.objective.masking.rate": 0.2, "tasks.mlm.objective.masking.mask": 1.0},
    },
    "roberta_base": {
        **{"optimizer.learning_rate": 6e-4, "optimizer.warmup_steps": 24_000, "optimizer.b2": 0.98},
        **{"optimizer.clip_norm": 0.0, "stages.0": (500_000, 512, 8192)},
    },
    "spanbert": {
        **{"optimizer.learning_rate": 1e-4, "optimizer.epsilon": 1e-8, "optimizer.weight_decay": 0.1},
        **{"stages.0": (2_400_000, 512, 256), "tasks.spanbert.objective.longest": 15},
        "tasks.spanbert.examples.kind": "doc_sentences",
    },
    "stacking": {
        **{f"stages.{i}": (steps, 128, 256) for i, steps in enumerate((50_000, 70_000, 280_000))},
        **{"stages.0.layers": 3, "stages.1.layers": 6, "stages.2.layers": 12},
        **{"optimizer.grow_moments": "reset", "optimizer.clip_norm": 0.0, "optimizer.warmup_steps": 10_000},
    },
    "structbert": {
        **{"optimizer.learning_rate": 1e-4, "optimizer.warmup_share": 0.1, "stages.0": (1_000_000, 512, 256)},
        **{"tasks.structbert.objective.shuffle_rate": 0.05},
    },
    "xlnet": {
        **{"optimizer.learning_rate": 4e-4, "optimizer.warmup_steps": 40_000, "stages.0": (500_000, 512, 8192)},
        "tasks.xlnet.objective.masking.longest": 5,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name):
    assert_published(to_dict(load(f"{CONFIGS / name}.py")), PUBLISHED[name])


def test_distilbert_has_the_settings_of_its_code(tmp_path):
    """As it is loaded for a teacher of BERT-base's size, of which only the settings are read."""
    manifest = {"format_version": 1, "config": {"model": PRESETS["base"].architecture()}}
    manifest |= {"vocab_size": 30_522, "numbers": {}}
    (tmp_path / "bertjax.json").write_text(json.dumps(manifest))
    settings = to_dict(load(f"{CONFIGS / 'distilbert.py'}:{tmp_path}"))
    published = {
        **{"init_layers": [0, 2, 4, 7, 9, 11], "model.layers": 6, "model.embeddings.segments": 0},
        **{"optimizer.learning_rate": 5e-4, "optimizer.b2": 0.98, "optimizer.weight_decay": 0.0},
        **{"optimizer.clip_norm": 5.0, "optimizer.warmup_share": 0.05, "optimizer.epsilon": 1e-6},
        **{"optimizer.frozen": ["^encoder/embeddings/position$"], "stages.0.epochs": 3.0, "stages.0.batch": 4000},
        **{"tasks.distillation.objective.losses.soft.kind": "token_logits"},
        **{"tasks.distillation.objective.losses.soft.temperature": 2.0},
        **{"tasks.distillation.objective.losses.soft.factor": 5.0, "tasks.distillation.objective.own_factor": 2.0},
        **{"tasks.distillation.objective.losses.cosine": {"kind": "output", "factor": 1.0}},
    }
    assert_published(settings, published)


@pytest.fixture
def ib_bert(tmp_path):
    """An export of the teacher of MobileBERT, of which only the settings are read."""
    manifest = {"format_version": 1, "config": {"model": PRESETS["ib_bert_large"].architecture()}}
    manifest |= {"vocab_size": 30_522, "numbers": {}}
    (tmp_path / "bertjax.json").write_text(json.dumps(manifest))
    return tmp_path


def test_mobilebert_has_the_architecture_and_the_settings_of_its_code(ib_bert):
    config = load(f"{CONFIGS / 'mobilebert.py'}:{ib_bert}")
    assert dataclasses.replace(config.model, attention_dropout=0.1) == PRESETS["mobilebert"]
    published = {
        **{"stages.0": (240_000, 512, 2048), "stages.1": (500_000, 512, 2048), "stages.1.tasks": ["distillation"]},
        **{"optimizer.kind": "lamb", "optimizer.learning_rate": 1.5e-3, "optimizer.warmup_steps": 10_000},
        **{"tasks.distillation.objective.own_factor": 0.5, "tasks.transfer.objective.own_factor": 0.0},
        **{"tasks.transfer.objective.losses.states.factor": 100.0 * 512},
    }
    assert_published(to_dict(config), published)


def assert_published(settings: dict, published: dict) -> None:
    for path, expected in published.items():
        value = settings
        for key in path.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        if isinstance(expected, tuple):
            value = (value["steps"], value["seq_len"], value["batch"])
        assert value == expected, path


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Where the recipes keep their token stores: some have the same."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def bucket():
    """A server of object storage, which holds the workdirs."""
    with ObjectStore().running() as store:
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("name", FROZEN)
def test_a_recipe_goes_the_whole_way_to_its_frozen_numbers(name, bucket, stores, undisturbed, tmp_path):
    config = load(f"{CONFIGS / name}.py:smoke")
    flags = [f"--config={CONFIGS / name}.py:smoke", f"--config.data.store={stores}"]
    printed = runs.train_in_bucket(bucket, name, *flags, XLA_FLAGS="")  # as users compile
    copy_of_run(bucket, name, tmp_path / "run")
    assert_trained(name, config, printed, tmp_path / "run")
    assert_frozen(name, tmp_path / "run", stores)
    assert_analyzed(name, tmp_path / "run", undisturbed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_goes_the_whole_way(name, bucket, stores, excerpt, undisturbed, tmp_path):
    """In this process, on a few texts and with half of the rows: no number depends on more."""
    path, small = f"{CONFIGS / name}.py:smoke", load(f"{CONFIGS / name}.py:smoke")
    lighter = {f"stages.{index}.batch": stage.batch // 2 for index, stage in enumerate(small.stages)}
    lighter |= {"runtime.micro_tokens": small.runtime.micro_tokens // 2}
    lighter |= {} if small.data.sources else {"data.corpus": excerpt}
    overrides = [f"{key}={value}" for key, value in lighter.items()]
    flags = [f"--config={path}", f"--config.data.store={stores}", *(f"--config.{override}" for override in overrides)]
    printed = runs.train_here_in_bucket(bucket, name, *flags)
    copy_of_run(bucket, name, tmp_path / "run")
    assert_trained(name, load(path, overrides), printed, tmp_path / "run")
    if name not in AS_MODERNBERT:
        assert_analyzed(name, tmp_path / "run", undisturbed, tmp_path)


def copy_of_run(bucket: ObjectStore, name: str, folder: Path) -> None:
    for path in bucket.names(f"{name}/"):
        copy = folder / path.removeprefix(f"{name}/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(bucket.content(path))


def assert_trained(name: str, config: Config, printed: str, workdir: Path) -> None:
    """A run has made all steps of its stages, its loss has fallen, and transformers has its class."""
    assert json.loads((workdir / "summary.json").read_text())["steps"] == sum(stage.steps for stage in config.stages)
    if name in CLASSES:
        theirs = json.loads((workdir / "export" / "hf" / "config.json").read_text())
        assert theirs["architectures"] == [CLASSES[name]]
    records = read_jsonl(Workdir.at(workdir).metrics)
    logged = [
        value
        for record in records
        for key, value in record.items()
        if re.search("^train/.*(mlm|plm|clm|generator)_loss$", key)
    ]
    assert logged[-1] < logged[0] - 0.5
    for index, stage in enumerate(config.stages):
        assert f"stage {index}: {stage.steps:,} steps of {stage.batch:,} rows of {stage.seq_len} tokens" in printed
        assert f" rows of {stage.seq_len} tokens an epoch" in printed


def assert_analyzed(name: str, workdir: Path, other: Path, folder: Path) -> None:
    """The commands that look into a run take it, and no part of the analysis fails."""
    parts = ["targets"] if name in ENCODER_OF_BERT else ["targets", "layers"]
    numbers = runs.look_inside(workdir, other, folder, "" if name in EVERY_PART else ",".join(parts))
    assert not numbers["failed"] and numbers["parts"].keys() >= {*parts}


def assert_frozen(name: str, workdir: Path, stores: Path) -> None:
    """A run computed what `tests/frozen.json` holds."""
    recipe = json.loads(frozen.FILE.read_text())["recipes"][name]
    assert frozen.batches(name, stores) == recipe["batches"]
    figures = frozen.figures(workdir)
    assert (figures["steps"], figures["tokens"]) == (recipe["steps"], recipe["tokens"])
    if frozen.cpu() == recipe["cpu"]:
        assert frozen.parameters(workdir / "export") == recipe["parameters"]
        assert {name: figures["eval"][name] for name in recipe["eval"]} == recipe["eval"]
    # A precision is that of a few predictions, and absent if there are none.
    compared = [name for name in recipe["eval"] if "precision" not in name]
    now, then = ({name: of["eval"][name] for name in compared if name in of["eval"]} for of in (figures, recipe))
    assert now == pytest.approx(then, abs=0.02)
