"""Configuration files: the shipped ones, overrides, earlier names, and flags."""

import json
from pathlib import Path

import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import add_flags, load, parse
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

ROOT = Path(__file__).parents[2]
SHIPPED = [
    *(("tiny", variant) for variant in ("", "smoke", "adamw", "chars", "ko")),
    *(("bert_large", variant) for variant in ("", "smoke")),
    *(
        (name, variant)
        for name in (
            "bert_base",
            "bert_lamb",
            "spanbert",
            "neobert",
            "ernie",
            "ernie2",
            "structbert",
            "stacking",
            "causal",
            "ib_bert",
            "korean",
        )
        for variant in ("", "smoke")
    ),
    *(("roberta_base", variant) for variant in ("", "smoke", "large")),
    *(("albert_base", variant) for variant in ("", "smoke", "large", "xlarge", "xxlarge")),
    *(("electra_small", variant) for variant in ("", "smoke", "base", "large", "mlm")),
    *(("xlnet", variant) for variant in ("", "smoke", "base")),
    *(("mpnet", variant) for variant in ("", "smoke", "mlm")),
    *(("modernbert", variant) for variant in ("", "smoke", "large")),
    *(("deberta_v3", variant) for variant in ("", "smoke", "xsmall", "small", "large")),
    *(("ettin", variant) for variant in ("", "smoke", "17m", "32m", "68m", "400m", "1b")),
    *(("mmbert", variant) for variant in ("", "smoke", "small", "phase1", "phase2", "phase3", "small-phase3")),
]


def path_of(name: str, variant: str = "") -> str:
    return f"{ROOT / 'configs' / name}.py" + (f":{variant}" if variant else "")


def test_every_shipped_file_is_tested():
    # Loaded in tests/cli/test_extend.py and tests/test_recipes.py.
    of_an_export = {"adapt", "distilbert", "mobilebert", "small_vocabulary"}
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} == {name for name, _ in SHIPPED} | of_an_export


@pytest.mark.parametrize("name, variant", SHIPPED)
def test_shipped_configurations_come_back_from_json(name, variant):
    config = load(path_of(name, variant))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_steps_and_rows_of_flags_replace_epochs_and_examples_of_the_file(tmp_path):
    stage = "{'epochs': 2.0, 'min_steps': 30, 'examples': 4}"
    (tmp_path / "a.py").write_text(f"def get_config():\n  return {{'stages': [{stage}]}}")
    [stage] = load(str(tmp_path / "a.py"), ["stages.0.steps=70000", "stages.0.batch=5"]).stages
    assert (stage.steps, stage.batch, stage.epochs, stage.min_steps, stage.examples) == (70_000, 5, 0, 0, 0)
    with pytest.raises(UserError, match="stages.0.steps and stages.0.epochs exclude each other; leave one out"):
        load(str(tmp_path / "a.py"), ["stages.0.steps=7", "stages.0.epochs=1"])


def test_a_kind_is_chosen_before_its_settings():
    masking = ["tasks.bert.objective.masking.rate=0.2", "tasks.bert.objective.masking.kind=spans"]
    examples = ["tasks.bert.examples.cut=sentences", "tasks.bert.examples.kind=full_sentences"]
    task = load("configs/tiny.py:adamw", [*masking, *examples, "tasks.bert.objective.kind=mlm"]).task
    assert (task.objective.masking.kind, task.objective.masking.rate) == ("spans", 0.2)
    assert (task.examples.kind, task.examples.cut) == ("full_sentences", "sentences")
    whole, mlm = "tasks={'bert': {'objective': {'kind': 'causal'}}}", [*examples, "tasks.bert.objective.kind=mlm"]
    kinds = [load("configs/tiny.py:adamw", each).task.kind for each in ([whole, *mlm], [*mlm, whole])]
    assert kinds == ["mlm", "causal"]


def test_overrides_are_applied_to_the_file():
    overrides = [
        "seed=5",
        "stages.0.steps=700",
        "optimizer.learning_rate=1",
        "model.preset=mini",
        "data.corpus=a/b.txt",
    ]
    config = load(path_of("tiny"), overrides)
    assert (config.seed, config.stages[0].steps, config.optimizer.learning_rate) == (5, 700, 1.0)
    assert (config.model.layers, config.model.max_positions, config.data.corpus) == (4, 32, "a/b.txt")


def test_a_task_is_added_by_its_kind_and_not_by_a_wrong_name():
    """The name of a task is that of its recipe: on `tiny`, whose task is `bert`, this flag would train a mixture."""
    with pytest.raises(UserError, match="^tasks.mlm is not in the configuration, which has tasks.bert; correct the"):
        load("tiny", ["tasks.mlm.objective.masking.rate=0.4"])
    added = load("tiny", ["tasks.mlm.objective.masking.rate=0.4", "tasks.mlm.objective.kind=mlm"])
    assert list(added.tasks) == ["bert", "mlm"]
    assert list(load("tiny", ["tasks={'mlm': {'weight': 2.0}}"]).tasks) == ["mlm"]


def test_flags():
    parser = command_line.ArgumentParser("train")
    add_flags(parser)
    parser.add_argument("--workdir")
    args, overrides = parse(parser, ["--config=a.py:b", "--config.seed=1", "--config.stages.0.steps=5"])
    assert (args.config, overrides) == ("a.py:b", ["seed=1", "stages.0.steps=5"])
    for flag, message in {
        "": "an argument is empty; remove it, or set the variable that it comes from",
        "--config.seed": "--config.seed has no value; write --config.seed=VALUE",
        "--workdri=x": "unknown flag '--workdri=x'; did you mean --workdir?",
        "--work-dir=runs/x": "unknown flag '--work-dir=runs/x'; did you mean --workdir?",
        "--steps=3": "unknown flag '--steps=3'; did you mean --config.stages.0.steps=3?",
        "--seed=3": "unknown flag '--seed=3'; did you mean --config.seed=3 or --config.eval.seed=3?",
        "--attention=x": "unknown flag '--attention=x'; did you mean --config.runtime.attention=x?",
        "--b2=0.98": "unknown flag '--b2=0.98'; did you mean --config.optimizer.b2=0.98?",
        "--rows": "unknown flag '--rows'; see --help",
        "--stages.0.steps=5": "unknown flag '--stages.0.steps=5'; did you mean --config.stages.0.steps=5?",
    }.items():
        with pytest.raises(UserError) as error:
            parse(parser, ["--config=a.py", flag])
        assert str(error.value) == message
    with pytest.raises(UserError, match="^--config.seed has no value; write --config.seed=1$"):
        parse(parser, ["--config=a.py", "--config.seed", "1", "--workdir=x"])
