"""Configurations: what they default to, how files and overrides are read, and what is refused."""

import argparse
import dataclasses
import json
import re
from pathlib import Path

import pytest

from bertjax import objectives, renames
from bertjax.config import from_dict, to_dict
from bertjax.config_file import add_flags, load, parse, short_name
from bertjax.data.config import SourceConfig
from bertjax.data.formats import FORMATS
from bertjax.data.masking import KINDS, MASKINGS
from bertjax.errors import UserError
from bertjax.models.config import PRESETS, Execution
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.typed import differences

ROOT = Path(__file__).parents[1]
SHIPPED = [
    *(("tiny", variant) for variant in ("", "smoke", "chars")),
    *(("bert_large", variant) for variant in ("", "smoke", "splash")),
    *(
        (name, variant)
        for name in (
            "bert_base",
            "bert_lamb",
            "spanbert",
            "modern",
            "ernie",
            "ernie2",
            "structbert",
            "stacking",
            "causal",
        )
        for variant in ("", "smoke")
    ),
    *(("roberta_base", variant) for variant in ("", "smoke", "large")),
    *(("albert_base", variant) for variant in ("", "smoke", "large", "xlarge", "xxlarge")),
    *(("electra_small", variant) for variant in ("", "smoke", "base", "large", "mlm")),
    *(("xlnet", variant) for variant in ("", "smoke", "base")),
]


def path_of(name: str, variant: str = "") -> str:
    return f"{ROOT / 'configs' / name}.py" + (f":{variant}" if variant else "")


def test_every_shipped_file_is_tested():
    of_an_export = {"adapt", "distilbert"}  # tests/test_extend.py, tests/training/test_init_from.py
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} == {name for name, _ in SHIPPED} | of_an_export


def test_steps_and_rows_that_depend_on_the_data_are_not_known():
    config = from_dict({"stages": [{"epochs": 3.0, "examples": 16}, {"steps": 20_000, "batch": 8}]})
    assert config.open_settings == ("stages.0.epochs", "stages.0.examples")
    assert (config.stages[0].steps, config.stages[0].batch) == (None, None)
    with pytest.raises(ValueError, match="stages.0.epochs, stages.0.examples must be resolved first"):
        config.identity("abc")
    resolved = dataclasses.replace(config.stages[0], steps=20_000, batch=15)
    config = dataclasses.replace(config, stages=(resolved, config.stages[1]))
    assert config.open_settings == () and config.identity("abc")["stages"][0]["epochs"] == 3.0
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_warmup_is_compared_with_the_steps_once_they_are_known():
    config = from_dict({"stages": [{"epochs": 3.0}], "optimizer": {"warmup_steps": 2_000_000}})
    with pytest.raises(UserError, match="optimizer.warmup_steps=2000000 must be below the 300 steps"):
        dataclasses.replace(config, stages=(dataclasses.replace(config.stages[0], steps=300),))


def test_classes_are_open_until_the_training_file_is_read():
    examples = {"kind": "labeled_text", "train": "a.tsv", "heldout": "b.tsv"}
    task = {"objective": {"kind": "classification"}, "examples": examples}
    assert from_dict({"tasks": {"a": task}}).open_settings == ("tasks.a.objective.classes",)
    task["objective"]["classes"] = ["bad", "good"]
    assert from_dict({"tasks": {"a": task}}).open_settings == ()


def test_epochs_replace_steps_of_the_file_and_of_overrides(tmp_path):
    (tmp_path / "a.py").write_text("def get_config():\n  return {'stages': [{'epochs': 2.0, 'steps': 7, 'batch': 5}]}")
    [stage] = load(str(tmp_path / "a.py"), ["stages.0.steps=500"]).stages
    assert (stage.steps, stage.batch) == (None, 5)
    [stage] = load(str(tmp_path / "a.py"), ["stages.0.steps=20000", "stages.0.epochs=0"]).stages
    assert stage.steps == 20_000


@pytest.mark.parametrize("name, variant", SHIPPED)
def test_shipped_configurations_come_back_from_json(name, variant):
    config = load(path_of(name, variant))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_an_empty_mapping_is_all_defaults():
    config = from_dict({})
    assert config == from_dict(to_dict(config))
    assert (config.model.width, config.task_name, config.stages[0].seq_len) == (768, "bert", 128)


def test_tasks_are_in_the_order_of_the_file():
    """A ConfigDict lists its keys sorted."""
    config = load("configs/ernie2.py:smoke")
    names = ["knowledge", "capitals", "document", "reordering", "distance"]
    assert list(config.tasks) == names and config.task_name == "knowledge"
    assert list(from_dict(json.loads(json.dumps(to_dict(config)))).tasks) == names


def test_runs_whose_tasks_have_another_order_are_different():
    config = load("configs/ernie2.py:smoke")
    reordered = dataclasses.replace(config, tasks=dict(sorted(config.tasks.items())))
    changed = differences(config.identity("abc"), reordered.identity("abc"))
    assert changed[0] == "task_order.0: 'knowledge' -> 'capitals'"
    assert "task_order" not in load("configs/tiny.py").identity("abc")


def test_the_kind_of_a_tokenizer_is_a_setting_like_any_other():
    tokenizer = load("configs/tiny.py:smoke", ["data.tokenizer.kind=bpe"]).data.tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size) == ("bpe", 2000)


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


def test_the_masking_is_chosen_by_its_kind():
    for kind in KINDS:
        config = from_dict({"tasks": {"bert": {"objective": {"masking": {"kind": kind, "rate": 0.3}}}}})
        masking = config.task.objective.masking
        assert type(masking) is MASKINGS.class_of(kind) and (masking.kind, masking.rate) == (kind, 0.3)
        assert from_dict(to_dict(config)) == config


def test_the_objective_is_chosen_by_its_kind():
    config = from_dict({"tasks": {"words": {"objective": {"kind": "mlm", "masking": {"rate": 0.3}}}}})
    assert type(config.task.objective) is MaskedLM and config.task.objective.masking.rate == 0.3
    assert to_dict(config)["tasks"]["words"]["objective"]["kind"] == "mlm"
    assert from_dict(to_dict(config)) == config


def _choices(seq_len: int, **settings) -> dict:
    examples = {"kind": "choices", "choices": ["a", "b", "c", "d"]} | settings
    task = {"objective": {"kind": "multiple_choice"}, "examples": examples}
    return {"tasks": {"race": task}, "stages": [{"seq_len": seq_len}]}


@pytest.mark.parametrize(
    "mapping",
    [
        _choices(2048),
        _choices(4096, max_tokens=512),
        _choices(2048, choices=["options"], max_tokens=512),
        {"tasks": {"mlm": {"examples": {"max_tokens": 512}}}, "stages": [{"seq_len": 4096}]},
    ],
)
def test_a_row_may_be_longer_than_the_position_table(mapping):
    config = from_dict(mapping)
    assert config.model.max_positions == 512 and from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    "mapping, longest",
    [(_choices(2052), 513), (_choices(2048, choices=["options"]), 1024), (_choices(4096, max_tokens=600), 600)],
)
def test_examples_longer_than_the_position_table(mapping, longest):
    with pytest.raises(UserError) as caught:
        from_dict(mapping)
    assert str(caught.value) == (
        f"stages.0.seq_len={mapping['stages'][0]['seq_len']} allows examples of {longest} tokens in tasks.race, and "
        "model.max_positions=512; set tasks.race.examples.max_tokens=512, or lower stages.0.seq_len"
    )


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_encoders_without_a_position_table_have_no_longest_example(positions):
    """What leaves the run states how long its examples were."""
    config = from_dict({"model": {"positions": positions}, "stages": [{"seq_len": 1024}]})
    assert config.model.max_positions == 1024
    assert from_dict({"model": {"positions": positions}}).model.max_positions == 512


@pytest.mark.parametrize(
    "objective, kind",
    [
        ("mlm", "full_sentences"),
        ("mlm", "doc_sentences"),
        ("bert", "sentence_pairs"),
        ("sentence_order", "sentence_order"),
        ("sentence_structure", "sentence_structure"),
    ],
)
def test_the_examples_are_chosen_by_their_kind(objective, kind):
    config = load(path_of("tiny"), [f"tasks.bert.objective.kind={objective}", f"tasks.bert.examples.kind={kind}"])
    assert type(config.task.examples) is FORMATS.class_of(kind)
    assert to_dict(config)["tasks"]["bert"]["examples"]["kind"] == kind
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_settings_are_read_under_their_earlier_names(monkeypatch):
    monkeypatch.setattr(renames, "KEYS", {"model.depth": "layers", "tasks.*.share": "weight", "stages.*.rows": "batch"})
    old = {"model": {"depth": 2}, "tasks": {"share": {"share": 0.5}}, "stages": [{"rows": 8, "steps": 20_000}]}
    new = {"model": {"layers": 2}, "tasks": {"share": {"weight": 0.5}}, "stages": [{"batch": 8, "steps": 20_000}]}
    assert renames.current(old) == new and from_dict(old) == from_dict(new)


@pytest.mark.parametrize("every, layers", [(1, []), (2, [0, 2, 4])])
def test_the_earlier_init_every_is_read_as_a_list_of_layers(every, layers):
    old = {"init_every": every, "init_from": "teacher", "model": {"layers": 3}}
    assert renames.current(old) == {"init_layers": layers, "init_from": "teacher", "model": {"layers": 3}}
    assert from_dict(old).init_layers == tuple(layers)


def test_chosen_layers_need_a_source():
    with pytest.raises(
        UserError, match=r"init_layers=\[0\] selects layers of init_from, which is empty; set init_from"
    ):
        from_dict({"init_layers": [0], "model": {"layers": 1}})


def test_a_kind_is_read_under_its_earlier_name():
    task = {"objective": {"kind": "classification"}, "examples": {"kind": "labelled_text", "text": "one"}}
    config = from_dict({"tasks": {"a": task}})
    assert to_dict(config)["tasks"]["a"]["examples"]["kind"] == "labeled_text"
    assert config.task.examples.text == "one"


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        ({}, {"task_type": 1}, "tasks.a.task_type=1 exceeds model.task_types=0; raise model.task_types to 2 or more"),
        (
            {"task_types": 2},
            {"task_type": 2},
            "tasks.a.task_type=2 exceeds model.task_types=2; raise model.task_types to 3",
        ),
        ({"task_types": 2}, {"task_type": -1}, "task_type=-1 must not be negative"),
        (
            {"task_types": 2},
            {"task_type": 1, "objective": {"kind": "classification"}, "examples": {"kind": "labeled_text"}},
            "tasks.a.task_type=1 applies to pretraining only; .* set tasks.a.task_type=0$",
        ),
        (
            {"task_types": 2},
            {"task_type": 1},
            "^model.task_types=2 and no task has task_type=0, which fine-tuning and predict use",
        ),
        ({"task_types": -1}, {}, "model.task_types=-1 must not be negative; 0 has no table of task embeddings"),
        ({"task_types": 2, "positions": "relative"}, {}, "model.task_types=2 are embeddings that are added to words"),
    ],
)
def test_bad_task_embeddings(model, task, message):
    with pytest.raises(UserError, match=message):
        from_dict({"model": model, "tasks": {"a": task}})


@pytest.mark.parametrize(
    "objective, kind, label, remedy",
    [
        ("bert", "full_sentences", "is_random", "segment_pairs or sentence_pairs"),
        ("bert", "sentence_order", "is_random", "segment_pairs or sentence_pairs"),
        ("sentence_order", "segment_pairs", "is_swapped", "sentence_order"),
        ("sentence_structure", "doc_sentences", "order", "sentence_structure"),
    ],
)
def test_examples_without_the_label_that_an_objective_learns(objective, kind, label, remedy):
    with pytest.raises(UserError) as caught:
        from_dict({"tasks": {"a": {"objective": {"kind": objective}, "examples": {"kind": kind}}}})
    assert str(caught.value) == (
        f"objective.kind={objective} learns the label {label}, which examples.kind={kind} does not have; "
        f"use examples.kind={remedy}, or another objective"
    )


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"sead": 1}, "unknown configuration key 'sead'; did you mean 'seed'?"),
        ({"model": {"widht": 1}}, "unknown configuration key 'model.widht'; did you mean 'width'?"),
        ({"stages": [{"batchs": 1}]}, "unknown configuration key 'stages.0.batchs'; did you mean 'batch'?"),
        ({"seed": "x"}, "seed='x' is str; it must be an integer"),
        ({"runtime": {"mesh": {"data": 1.0}}}, "runtime.mesh.data=1.0 is float; it must be an integer"),
        ({"model": {"width": 30}}, "model.width=30 is not divisible by model.heads=12"),
        (
            {"stages": [{"seq_len": 1024}]},
            "stages.0.seq_len=1024 exceeds model.max_positions=512; lower stages.0.seq_len or raise "
            "model.max_positions, or pack shorter examples: tasks.bert.examples.max_tokens=512",
        ),
        (
            {"model": {"preset": "tinny"}},
            f"model.preset='tinny' is unknown; choose one of {', '.join(PRESETS)} or init_from",
        ),
        (
            {"model": {"execution": {}}},
            "model.execution is not a setting; use runtime.dtype, runtime.unroll and runtime.remat",
        ),
        (
            {"model": {"layers": 5}, "stages": [{"layers": 2}, {}]},
            "stages.1 has 5 layers and the stage before has 2; set stages.1.layers to 2 or 4",
        ),
        (
            {"model": {"layers": 4}, "stages": [{"layers": 2}]},
            "stages.0.layers=2 must equal model.layers=4: the last stage trains the whole model",
        ),
        ({"tasks": {}}, "tasks is empty; give at least one, with an objective and examples"),
        (
            {"tasks": {"a": {"weight": 0.0}}},
            "weight=0.0 must be a number above 0; to train without a task, remove it from stages.N.tasks",
        ),
        (
            {"tasks": {"a": {}, "b": {"weight": 1e-5}}},
            "tasks.b.weight=1e-05 gives it 0.001% of the steps of stages.0; the smallest share is 0.012%: raise "
            "its weight",
        ),
        ({"stages": [{"tasks": ["a"]}]}, "stages.N.tasks has 'a', which is not in tasks; choose among bert"),
        (
            {"tasks": {"a": {}, "b": {}}, "stages": [{"tasks": ["a"]}]},
            "tasks.b is in no stage; add it to stages.N.tasks, or remove it from tasks",
        ),
        (
            {"optimizer": {"layer_decay_offset": 2}},
            "optimizer.layer_decay_offset=2 has no effect without optimizer.layer_decay; set both, such as "
            "layer_decay=0.8",
        ),
        ({"stages": []}, "stages is empty; give at least one, with steps, seq_len and batch"),
        ({"stages": [{"steps": 0}]}, "stages.0.steps=0 must be at least 1"),
        ({"stages": [{}, {"batch": 0}]}, "stages.1.batch=0 must be at least 1"),
        (
            {"stages": [{}, {"seq_len": 1024}]},
            "stages.1.seq_len=1024 exceeds model.max_positions=512; lower stages.1.seq_len or raise "
            "model.max_positions, or pack shorter examples: tasks.bert.examples.max_tokens=512",
        ),
        ({"stages": [{}, {"learning_rate": -1}]}, "stages.1.learning_rate=-1.0 must not be negative"),
        (
            {"stages": [{}, {"warmup_steps": 5}]},
            "stages.1.warmup_steps=5 has no effect without stages.1.learning_rate; set both, or "
            "optimizer.warmup_steps for the warm-up of the run",
        ),
        (
            {"stages": [{"learning_rate": 1}]},
            "stages.0.learning_rate=1.0 has no effect in the first stage; set optimizer.learning_rate and "
            "optimizer.warmup_steps instead",
        ),
        (
            {"stages": [{"steps": 500}]},
            "optimizer.warmup_steps=10000 must be below the 500 steps that the learning rate has to rise and fall; "
            "lower it, or train longer",
        ),
        (
            {"stages": [{}, {"steps": 50, "learning_rate": 1e-4, "warmup_steps": 50}]},
            "stages.1.warmup_steps=50 must be below the 50 steps that the learning rate has to rise and fall; "
            "lower it, or train longer",
        ),
        ({"optimizer": {"kind": "adam"}}, "optimizer.kind='adam' is unknown; choose one of adamw, lamb"),
        ({"optimizer": {"clip_norm": -1}}, "optimizer.clip_norm=-1.0 must not be negative"),
        (
            {"optimizer": {"schedule": {"kind": "step"}}},
            "optimizer.schedule.kind='step' is unknown; choose one of linear, one_cycle, cosine, wsd, inverse_sqrt",
        ),
        (
            {"optimizer": {"schedule": {"kind": "wsd", "decay_steps": 0}}},
            "optimizer.schedule.decay_steps=0 must be at least 1",
        ),
        (
            {"optimizer": {"schedule": {"kind": "linear", "decay_steps": 9}}},
            "unknown configuration key 'optimizer.schedule.decay_steps'; known are kind",
        ),
        (
            {"optimizer": {"multipliers": [{"factor": 2.0}]}},
            "optimizer.multipliers.0.path is empty and would match every parameter; write .* if that is intended",
        ),
        (
            {"optimizer": {"multipliers": [{"path": "heads", "factor": 0.0}]}},
            "optimizer.multipliers.0.factor=0.0 must be above 0; to freeze parameters use optimizer.frozen",
        ),
        (
            {"optimizer": {"multipliers": [{"path": "layers/", "by_layer": [1, -1]}]}},
            "optimizer.multipliers.0.by_layer=[1.0, -1.0] must not be negative",
        ),
        (
            {"optimizer": {"frozen": ["layers/("]}},
            "optimizer.frozen.0='layers/(' is not a regular expression: missing ), unterminated subpattern at "
            "position 7",
        ),
        ({"eval": {"rows": -1}}, "eval.rows=-1 must not be negative"),
        ({"runtime": {"max_skipped": -1}}, "runtime.max_skipped=-1 must not be negative"),
        ({"runtime": {"micro_tokens": -1}}, "runtime.micro_tokens=-1 must not be negative"),
        (
            {"tasks": {"a": {"objective": {"masking": {"kind": "word"}}}}},
            "masking.kind='word' is unknown; choose one of tokens, words, ngrams, spans, phrases",
        ),
        (
            {"tasks": {"a": {"objective": {"masking": {"kind": "words", "lexicon": "mine"}}}}},
            "unknown configuration key 'tasks.a.objective.masking.lexicon'; known are kind, mask, random, rate, static",
        ),
        (
            {"tasks": {"a": {"examples": {"kind": "full_sentences", "trim": "front"}}}},
            "unknown configuration key 'tasks.a.examples.trim'; known are cut, kind, max_tokens",
        ),
        ({"tasks": {"a": {"examples": {"kind": 5}}}}, "tasks.a.examples.kind=5 is int; it must be text"),
        ({"data": {"tokenizer": {"vocab_size": -1}}}, "data.tokenizer.vocab_size=-1 must be at least 1"),
        (
            {"tasks": {"a": {"objective": {"kind": "nope"}}}},
            f"objective.kind='nope' is unknown; choose one of {', '.join(objectives.KINDS)}, or name module:Class",
        ),
    ],
)
def test_bad_settings_are_refused(mapping, message):
    with pytest.raises(UserError) as error:
        from_dict(mapping)
    assert str(error.value) == message


@pytest.mark.parametrize("runtime", [{"dtype": "float8"}, {"remat": "some"}])
def test_bad_execution_settings(runtime):
    [value] = runtime.values()
    with pytest.raises(UserError, match=f"={value!r} is unknown; choose one of "):
        from_dict({"runtime": runtime}).encoder(100, "cpu")


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


def test_missing_files_and_variants():
    with pytest.raises(UserError, match="configuration file 'no/such.py' does not exist; choose a file in configs/"):
        load("no/such.py")
    with pytest.raises(UserError, match="unknown variant 'smokee'; choose smoke or chars$"):
        load(path_of("tiny", "smokee"))


def test_the_identity_leaves_out_how_and_where_a_run_is_executed():
    config = load(path_of("tiny", "smoke"))

    def identity(overrides):
        return load(path_of("tiny", "smoke"), overrides).identity("f00d")

    for free in ("data.store=/x", "data.corpus=/copy/of/it", "data.heldout=/y", "runtime.micro_tokens=64",
                 "runtime.keep=9", "eval.rows=10"):  # fmt: skip
        assert identity([free]) == config.identity("f00d"), free
    for bound in ("seed=1", "model.width=256", "data.splitter=line", "tasks.bert.objective.masking.rate=0.2",
                  "optimizer.b1=0.8", "stages.0.steps=61"):  # fmt: skip
        assert identity([bound]) != config.identity("f00d"), bound
    assert config.identity("other") != config.identity("f00d")
    assert json.loads(json.dumps(config.identity("f00d"))) == config.identity("f00d")


def test_sources_are_identified_by_content_and_not_by_path():
    def identity(**book):
        return from_dict({"data": {"sources": {"law": {"corpus": "law"}, "book": book}}}).identity("f00d")

    first = identity(corpus="books")
    assert identity(corpus="copy/of/books") == first
    assert identity(corpus="books", weight=2) != first and identity(corpus="books", text_field="body") != first


def test_sources_have_names():
    config = from_dict({"data": {"sources": {"law": {"corpus": "b"}, "book": {"corpus": "a", "weight": 2}}}})
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert list(config.data.named_sources.items()) == [
        ("book", SourceConfig("a", "text", 2.0)),
        ("law", SourceConfig("b")),
    ]
    one = from_dict({"data": {"corpus": "a", "text_field": "body"}}).data
    assert one.named_sources == {"corpus": SourceConfig("a", "body")}


@pytest.mark.parametrize(
    "data, message",
    [
        ({"on_bad_document": "ignore"}, "data.on_bad_document='ignore' is unknown; choose one of stop, skip"),
        ({"corpus": "a", "sources": {"b": {"corpus": "b"}}}, "data.corpus='a' and data.sources (b) are both set"),
        ({"sources": {"b": {}}}, "data.sources.b.corpus is not set"),
        ({"sources": {"b": {"corpus": "b", "weight": 0}}}, "data.sources.b.weight=0.0 must be above 0"),
        ({"sources": {"b": {"corpus": "b", "weight": float("nan")}}}, "data.sources.b.weight=nan must be above 0"),
        ({"smoothing": 1.5}, "data.smoothing=1.5 must be between 0 and 1"),
        ({"smoothing": float("nan")}, "data.smoothing=nan must be between 0 and 1"),
        ({"smoothing": 0.7, "sources": {"a": {"corpus": "a"}}}, "data.smoothing=0.7 has no effect on one corpus"),
        (
            {"smoothing": 0.7, "sources": {"a": {"corpus": "a"}, "b": {"corpus": "b", "weight": 2.0}}},
            "data.smoothing=0.7 and data.sources.b.weight=2.0 both set how often a source is drawn",
        ),
        ({"share": float("nan")}, "data.share=nan must be above 0"),
        ({"sources": {"../b": {"corpus": "b"}}}, "data.sources has the name '../b'"),
        ({"sources": {"b": {"corpse": "b"}}}, "unknown configuration key 'data.sources.b.corpse'; did you mean"),
    ],
)
def test_bad_sources(data, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_dict({"data": data})


def test_the_encoder_is_executed_as_backend_and_user_choose():
    config = from_dict({"model": {"preset": "mini"}})
    encoder = config.encoder(100, "cpu")
    assert encoder.execution == Execution("float32") and encoder.vocab_size == 100
    assert config.encoder(100, "tpu").execution.dtype == config.encoder(100, "gpu").execution.dtype == "bfloat16"
    configured = from_dict({"runtime": {"dtype": "float32", "unroll": True, "remat": "dots"}})
    assert configured.encoder(100, "tpu").execution == Execution("float32", True, "dots")
    fixed = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=99))
    with pytest.raises(
        UserError, match="model.vocab_size=99 does not match the 100 ids of the tokenizer; set model.vocab_size=0"
    ):
        fixed.encoder(100, "cpu")


@pytest.mark.parametrize(
    "path, overrides, name",
    [
        ("configs/tiny.py", [], "tiny"),
        ("configs/tiny.py:smoke", [], "tiny-smoke"),
        ("configs/tiny.py:smoke", ["seed=1", "optimizer.learning_rate=1e-3"], "tiny-smoke-seed=1-learning_rate=1e-3"),
        ("configs/tiny.py", ["runtime.workers=2", "eval.rows=100"], "tiny"),
        ("configs/tiny.py", ["data.corpus=my/texts *.txt"], "tiny-corpus=my_texts_.txt"),
    ],
)
def test_the_default_name_of_a_workdir(path, overrides, name):
    assert short_name(path, overrides) == name


def test_flags():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    args, overrides = parse(parser, ["--config=a.py:b", "--config.seed=1", "--config.stages.0.steps=5"])
    assert (args.config, overrides) == ("a.py:b", ["seed=1", "stages.0.steps=5"])
    for flag, message in {
        "--workdri=x": "unknown flag '--workdri=x'; see --help",
        "--stages.0.steps=5": "unknown flag '--stages.0.steps=5'; did you mean --config.stages.0.steps=5?",
    }.items():
        with pytest.raises(UserError) as error:
            parse(parser, ["--config=a.py", flag])
        assert str(error.value) == message
