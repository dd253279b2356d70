"""Configuration files: the shipped ones, overrides, earlier names, and flags."""

import json
from pathlib import Path

import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import add_flags, find, load, parse, short_name
from bertjax.data.config import DataConfig
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.optim.config import OptimizerConfig

ROOT = Path(__file__).parents[2]
SHIPPED = [
    *(("tiny", variant) for variant in ("", "smoke", "chars", "ko")),
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


@pytest.mark.parametrize("name", ["tiny", "configs/tiny.py", "tiny:smoke", "finetune/glue:MRPC"])
def test_recipes_are_found_by_name_in_any_folder(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path, _, variant = name.partition(":")
    assert find(path) == path_of(path.removeprefix("configs/").removesuffix(".py"))
    if "finetune" not in name:  # fine-tuning needs a model to start from
        assert load(name) == load(path_of("tiny", variant))


@pytest.mark.parametrize(
    "name, hint",
    [("tinny", "did you mean tiny"), ("../configs/tiny", "recipes are adapt, "), ("x", "recipes are adapt, ")],
)
def test_an_unknown_recipe_is_refused_with_the_nearest(name, hint, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=hint):
        find(name)


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


@pytest.mark.parametrize(
    "recipe, flag, expected",
    [
        ({"warmup_share": 0.1}, "warmup_steps=7", (7, 0.0)),
        ({"warmup_share": 0.1}, "warmup_steps=0", (0, 0.0)),
        ({"warmup_steps": 9}, "warmup_share=0.2", (OptimizerConfig.warmup_steps, 0.2)),
        ({"warmup_steps": 9}, "warmup_share=0.0", (9, 0.0)),
        ({"warmup_share": 0.1}, "warmup_tokens=3e9", (OptimizerConfig.warmup_steps, 0.0)),
    ],
)
def test_the_warm_up_of_a_flag_replaces_that_of_the_file(tmp_path, recipe, flag, expected):
    (tmp_path / "a.py").write_text(f"def get_config():\n  return {{'optimizer': {recipe}}}")
    optimizer = load(str(tmp_path / "a.py"), [f"optimizer.{flag}"]).optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_share) == expected
    with pytest.raises(UserError, match="optimizer.warmup_steps and optimizer.warmup_share exclude each other"):
        load(str(tmp_path / "a.py"), ["optimizer.warmup_steps=7", "optimizer.warmup_share=0.1"])


@pytest.mark.parametrize("other", ["warmup_share", "warmup_tokens"])
def test_a_file_sets_the_warm_up_once(tmp_path, other):
    (tmp_path / "a.py").write_text(
        f"def get_config():\n  return {{'optimizer': {{'warmup_steps': 300, '{other}': 0.5}}}}"
    )
    with pytest.raises(UserError, match=f"^optimizer.warmup_steps=300 and optimizer.{other}=0.5 both set the warm-up"):
        load(str(tmp_path / "a.py"))
    assert load(str(tmp_path / "a.py"), ["optimizer.warmup_steps=7"]).optimizer.warmup_steps == 7


@pytest.mark.parametrize("number, by_data", [("steps", "epochs"), ("steps", "flops"), ("batch", "examples")])
def test_of_the_ways_to_say_how_long_a_stage_is_that_of_a_flag_is_taken(tmp_path, number, by_data):
    for recipe in ({number: 8}, {"epochs": 2.0, "min_steps": 3} if number == "steps" else {by_data: 4}):
        (tmp_path / "a.py").write_text(f"def get_config():\n  return {{'stages': [{recipe}]}}")
        [stage] = load(str(tmp_path / "a.py"), [f"stages.0.{by_data}=5"]).stages
        assert (getattr(stage, by_data), getattr(stage, number)) == (5, None) and stage.open_settings == (by_data,)


def test_sources_of_flags_replace_the_corpus_of_the_file_and_the_other_way_around(tmp_path):
    (tmp_path / "a.py").write_text("def get_config():\n  return {'data': {'corpus': 'hf:a/b', 'text_field': 'body'}}")
    sources = ["data.sources.law.corpus=law/*.jsonl", "data.sources.books.corpus=books"]
    data = load(str(tmp_path / "a.py"), sources).data
    assert (data.corpus, data.text_field) == (DataConfig.corpus, DataConfig.text_field)
    assert {name: source.corpus for name, source in data.named_sources.items()} == {
        "books": "books",
        "law": "law/*.jsonl",
    }
    with pytest.raises(UserError, match="data.corpus='c' and data.sources .law, books. are both set"):
        load(str(tmp_path / "a.py"), [*sources, "data.corpus=c"])
    recipe = {"data": {"sources": {"a": {"corpus": "a"}, "b": {"corpus": "b"}}, "smoothing": 0.5}}
    (tmp_path / "b.py").write_text(f"def get_config():\n  return {recipe}")
    data = load(str(tmp_path / "b.py"), ["data.corpus=my/texts"]).data
    assert (data.corpus, data.sources, data.smoothing) == ("my/texts", {}, 1.0)
    data = load(str(tmp_path / "b.py"), ["data.sources.c.corpus=c"]).data
    assert list(data.sources) == ["a", "b", "c"] and data.smoothing == 0.5


def test_epochs_replace_steps_of_the_file(tmp_path):
    (tmp_path / "a.py").write_text("def get_config():\n  return {'stages': [{'epochs': 2.0, 'steps': 7, 'batch': 5}]}")
    [stage] = load(str(tmp_path / "a.py")).stages
    assert (stage.steps, stage.batch) == (None, 5)
    [stage] = load(str(tmp_path / "a.py"), ["stages.0.epochs=0", "stages.0.flops=1e12"]).stages
    assert (stage.steps, stage.open_settings) == (None, ("flops",))
    [stage] = load(str(tmp_path / "a.py"), ["stages.0.steps=20000", "stages.0.epochs=0"]).stages
    assert stage.steps == 20_000


def test_a_new_kind_says_which_settings_it_removes(capsys):
    load("configs/tiny.py", ["tasks.bert.objective.kind=mlm", "tasks.bert.examples.kind=full_sentences"])
    [line] = capsys.readouterr().err.splitlines()  # the objective has nothing but a kind
    assert line == (
        "tasks.bert.examples.kind=full_sentences: settings that the recipe has for another kind are not used: "
        "short_seq_prob, fewest, trim"
    )


def test_a_kind_is_chosen_before_its_settings():
    masking = ["tasks.bert.objective.masking.rate=0.2", "tasks.bert.objective.masking.kind=spans"]
    examples = ["tasks.bert.examples.cut=sentences", "tasks.bert.examples.kind=full_sentences"]
    task = load("configs/tiny.py", [*masking, *examples, "tasks.bert.objective.kind=mlm"]).task
    assert (task.objective.masking.kind, task.objective.masking.rate) == ("spans", 0.2)
    assert (task.examples.kind, task.examples.cut) == ("full_sentences", "sentences")


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


@pytest.mark.parametrize(
    "text, message",
    [
        ("def get_config(:", "cannot be read"),
        ("", "cannot be read"),
        ("def get_config(variant=''):\n    raise ValueError('no variant x; there are a and b')", "no variant x; there"),
    ],
)
def test_broken_files(tmp_path, text, message):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(UserError, match=message):
        load(f"{tmp_path / 'broken.py'}:x")


def test_a_task_is_added_by_its_kind_and_not_by_a_wrong_name():
    """The name of a task is that of its recipe: on `tiny`, whose task is `bert`, this flag would train a mixture."""
    with pytest.raises(UserError, match="^tasks.mlm is not in the configuration, which has tasks.bert; correct the"):
        load("tiny", ["tasks.mlm.objective.masking.rate=0.4"])
    added = load("tiny", ["tasks.mlm.objective.masking.rate=0.4", "tasks.mlm.objective.kind=mlm"])
    assert list(added.tasks) == ["bert", "mlm"]
    assert list(load("tiny", ["tasks={'mlm': {'weight': 2.0}}"]).tasks) == ["mlm"]


@pytest.mark.parametrize(
    "path, overrides, name",
    [
        ("configs/tiny.py", [], "tiny"),
        ("configs/tiny.py:smoke", [], "tiny-smoke"),
        ("configs/tiny.py:smoke", ["seed=1", "optimizer.learning_rate=1e-3"], "tiny-smoke-seed=1-learning_rate=1e-3"),
        ("configs/tiny.py", ["runtime.workers=2", "eval.rows=100"], "tiny"),
        ("configs/tiny.py:smoke", ["data.store=/disk/stores", "data.cache_dir=/x", "data.workers=0"], "tiny-smoke"),
        ("configs/tiny.py", ["data.corpus=my/texts *.txt"], "tiny-corpus=my_texts_.txt"),
    ],
)
def test_the_default_name_of_a_workdir(path, overrides, name):
    assert short_name(path, overrides) == name


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
