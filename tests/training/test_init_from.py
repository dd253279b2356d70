"""A run that starts with the weights of another run."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.cli import convert
from bertjax.config import config_file, export
from bertjax.config.config import from_dict, to_dict
from bertjax.models import int8
from bertjax.models.config import EncoderConfig
from bertjax.objectives.pretraining.electra import EMBEDDING_SHARING
from bertjax.runtime.errors import UserError
from bertjax.training import class_heads, init_from
from bertjax.training.program import Program
from tests import batches, runs
from tests.interop import models

CONFIGS = Path(__file__).parents[2] / "configs"
MLM_HEAD = ("transform/kernel", "transform/bias", "norm/scale", "norm/bias", "word_bias")
# A learning rate of almost 0: such a run ends with the weights that it started with.
SHORT = ["--config.stages.0.steps=5", "--config.optimizer.warmup_steps=2", "--config.optimizer.learning_rate=1e-12"]


def weights(folder) -> dict[str, np.ndarray]:
    return load_file(folder / "export" / "model.safetensors")


def test_weights_are_loaded_and_the_optimizer_is_fresh(flags, undisturbed, tmp_path):
    """From a checkpoint, whose weights are those of the export."""
    assert runs.call(*flags, *SHORT, f"--config.init_from={undisturbed}@100", f"--workdir={tmp_path}/run") == 0
    before, after = weights(undisturbed), weights(tmp_path / "run")
    assert before.keys() == after.keys()
    for path, values in before.items():
        np.testing.assert_allclose(after[path], values, atol=1e-8)
    first = runs.losses(tmp_path / "run")[0]
    assert first[0] == 1
    identity = json.loads((tmp_path / "run" / "config.json").read_text())["identity"]
    assert len(identity["init_from"]) == 64


def test_a_run_resumes_without_its_source_but_not_with_another(flags, undisturbed, tmp_path, capsys):
    source, other = tmp_path / "export", tmp_path / "other"
    for copy in (source, other):
        shutil.copytree(undisturbed / "export", copy)
    command = [*flags, *SHORT, f"--workdir={tmp_path}/run"]
    assert runs.call(*command, f"--config.init_from={source}") == 0
    shutil.rmtree(source)
    assert runs.call(*command, f"--config.init_from={source}") == 0
    assert runs.call(*command, f"--config.init_from={other}") == 0, "the same model, mounted elsewhere"
    assert runs.call(*command, f"--config.init_from={undisturbed}@40") == 2
    assert "holds a run with other settings (init_from: '" in capsys.readouterr().err.splitlines()[-1]


def test_heads_that_the_source_lacks_are_initialized_with_a_warning(flags, undisturbed, tmp_path, caplog):
    source = export.read(undisturbed / "export")
    del source.params["heads"]["nsp"]
    export.write(tmp_path / "mlm", source)
    command = [*flags, *SHORT, f"--config.init_from={tmp_path}/mlm", f"--workdir={tmp_path}/run"]
    assert runs.call(*command) == 0
    [message] = [r.getMessage() for r in caplog.records if "initialized from scratch" in r.getMessage()]
    assert "heads/nsp/classifier/kernel" in message and "mlm/transform" not in message


@pytest.mark.parametrize(
    "bias, frozen, objective, warns",
    [
        (0.0, ["^encoder/"], {}, True),
        (0.1, ["^encoder/"], {}, False),
        (0.0, ["^encoder/(?!pooler)"], {}, False),
        (0.0, ["^encoder/"], {"pooling": "mean"}, False),
        (0.0, ["^encoder/"], {"reads": "mix"}, False),
    ],
)
def test_a_frozen_pooler_that_was_never_trained_is_a_warning(caplog, bias, frozen, objective, warns):
    task = {"objective": {"kind": "classification"} | objective, "examples": {"kind": "labeled_text"}}
    config = from_dict({"tasks": {"a": task}, "optimizer": {"frozen": frozen}})
    init_from._warn_of_pooler(config, {"encoder/pooler/bias": np.full(4, bias, np.float32)})
    assert ("random features of [CLS]" in caplog.text) == warns


@pytest.mark.parametrize(
    "change, named",
    [
        ("model.layers=3", "encoder/layers/attention/key/bias 2x32 -> 3x32"),
        ("model.max_positions=64", "encoder/embeddings/position 32x32 -> 64x32"),
    ],
)
def test_another_architecture_is_refused_by_the_first_parameters_that_differ(
    flags, undisturbed, tmp_path, capsys, change, named
):
    source = f"--config.init_from={undisturbed / 'export'}"
    assert runs.call(*flags, source, f"--config.{change}", f"--workdir={tmp_path}/run") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: init_from={undisturbed / 'export'} has another encoder (") and named in error
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    "architecture, new",
    [
        ("BertForMaskedLM", {"encoder/pooler/bias", "encoder/pooler/kernel"}),
        ("BertForPreTraining", set()),
        ("BertModel", {f"heads/mlm/{name}" for name in MLM_HEAD}),
    ],
)
def test_params_that_a_hugging_face_checkpoint_lacks_are_initialized(tmp_path, caplog, architecture, new):
    """It lacks the pooler if its only head is the MLM head; no head reads the pooler."""
    export.write(tmp_path / "made", models.make(models.PARTS[architecture], models.trained()))
    convert.run(tmp_path / "made", tmp_path / "theirs")
    convert.run(tmp_path / "theirs", tmp_path / "bert")
    loaded = config_file.load(f"{CONFIGS / 'adapt.py'}:{tmp_path / 'bert'}")
    tokens = export.read(tmp_path / "bert").tokenizer
    program = Program(loaded, tokens.vocab_size)
    source = init_from.read(program, tokens)
    expected = {path for path, _ in init_from._leaves(program.abstract_state["params"])}
    assert expected - source.params.keys() == new
    messages = [record.getMessage() for record in caplog.records if "initialized from scratch" in record.getMessage()]
    assert bool(messages) == bool(new) and all(path in messages[0] for path in new)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_head_of_modernbert_starts_with_the_first_layer_of_its_mlm_head(tmp_path, caplog, pooling):
    tokens = models.trained()
    export.write(tmp_path / "mlm", models.make(frozenset({"mlm"}), tokens, "modernbert"))
    objective = {"kind": "classification", "classes": ["a", "b"], "pooling": pooling}
    made = export.read(tmp_path / "mlm")
    config = from_dict(
        {
            "model": made.encoder.architecture(),
            "tasks": {"toy": {"objective": objective, "examples": {"kind": "labeled_text"}}},
            "stages": [{"seq_len": 20}],
            "init_from": str(tmp_path / "mlm"),
        }
    )
    source = init_from.read(Program(config, tokens.vocab_size), tokens)
    [message] = [r.getMessage() for r in caplog.records if "initialized from scratch" in r.getMessage()]
    head = "heads/classification/classifier"
    assert message.endswith(f" lacks {head}/bias, {head}/kernel: initialized from scratch")
    for leaf in ("transform/kernel", "norm/scale"):
        outer, inner = leaf.split("/")
        np.testing.assert_array_equal(
            source.params[f"heads/classification/{leaf}"], made.params["heads"]["mlm"][outer][inner]
        )


def test_a_generator_starts_with_the_embeddings_that_it_read(tmp_path, caplog):
    """Shared tables become two equal ones. Of two that differ, only the encoder's can become a shared one."""
    tokens = models.trained()

    def program(sharing: str, start: str = "") -> Program:
        task = {"objective": {"kind": "electra", "embedding_sharing": sharing, "generator_share": 0.5}}
        settings = {"model": models.SIZES, "tasks": {"e": task | {"examples": {"kind": "full_sentences"}}}}
        return Program(from_dict(settings | {"stages": [{"seq_len": 20}], "init_from": start}), tokens.vocab_size)

    sharings = {name: program(name) for name in EMBEDDING_SHARING}
    for name, made in sharings.items():
        params = jax.tree.map(np.asarray, made.to_model_params(batches.filled(made.param_shapes), 0))
        export.write(tmp_path / name, export.Export(to_dict(made.config), made.encoder, params, tokens, {}))
    read = {
        (start, end): init_from.read(program(end, str(tmp_path / start)), tokens).params
        for start in sharings
        for end in sharings
    }
    for (_, end), params in read.items():
        assert params.keys() == {path for path, _ in init_from._leaves(sharings[end].param_shapes)}
    params = read["all", "gradient_disentangled"]
    for table in ("position", "segment", "norm/scale", "norm/bias"):
        path = f"encoder/embeddings/{table}"
        np.testing.assert_array_equal(params[f"generator/{path}"], params[path])
    own = ", ".join(f"generator/encoder/embeddings/{leaf}" for leaf in ("norm/bias", "norm/scale", "position"))
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith(f"init_from={tmp_path / 'gradient_disentangled'} has a generator with embeddings of its")
    assert f"reads the encoder's: left out {own}" in message


@pytest.mark.parametrize(
    "change, setting", [("heads=4", "heads=2 (not 4)"), ("norm_epsilon=1e-5", "norm_epsilon=1e-12 (")]
)
def test_settings_that_shapes_do_not_show_are_compared_too(flags, undisturbed, tmp_path, capsys, change, setting):
    source = f"--config.init_from={undisturbed / 'export'}"
    assert runs.call(*flags, source, f"--config.model.{change}", f"--workdir={tmp_path}/run") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"computes another function with these weights; set model.{setting}" in error
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_source_is_read_with_other_rotary_bases_and_a_longer_row(tmp_path, caplog):
    """Both are logged; a setting of the same block that is not about positions is refused."""
    tokens = models.trained()
    made = models.make(frozenset({"mlm"}), tokens, "modernbert")
    export.write(tmp_path / "mlm", made)
    longer, before = made.encoder.max_positions + 8, made.encoder.block.rotary_base

    def read(**block) -> init_from.Source:
        model = made.encoder.architecture()
        task = {"objective": {"kind": "mlm"}, "examples": {"kind": "doc_sentences"}}
        settings = {"model": model | {"block": model["block"] | block}, "tasks": {"mlm": task}}
        config = from_dict(settings | {"stages": [{"seq_len": longer}], "init_from": str(tmp_path / "mlm")})
        return init_from.read(Program(config, tokens.vocab_size), tokens)

    with caplog.at_level("INFO", logger="bertjax"):
        assert read(rotary_base=before).fingerprint == read(rotary_base=2.0 * before).fingerprint
    length = f"model.max_positions={longer - 8} (this run has {longer})"
    base = f"model.block.rotary_base={before} (this run has {2.0 * before})"
    start = f"init_from={tmp_path / 'mlm'} was trained with {length}"
    assert [record.getMessage() for record in caplog.records] == [start, f"{start} and {base}"]
    with pytest.raises(UserError, match=r"computes another function with these weights; set model.block.window="):
        read(window=made.encoder.block.window + 1)


def test_rounding_of_activations_may_begin_but_not_end(undisturbed, tmp_path):
    """Q8BERT is trained from weights whose activations were not rounded."""
    plain = undisturbed / "export"
    saved = export.read(plain)
    settings = json.loads(json.dumps(saved.settings))
    settings["model"]["activation_bits"] = 8
    encoder = dataclasses.replace(saved.encoder, activation_bits=8)
    export.write(tmp_path / "rounding", saved._replace(encoder=encoder, settings=settings))

    def read(settings, source):
        config = from_dict(settings | {"init_from": str(source)})
        return init_from.read(Program(config, saved.tokenizer.vocab_size), saved.tokenizer)

    assert read(settings, plain).fingerprint == read(settings, tmp_path / "rounding").fingerprint
    with pytest.raises(UserError, match=r"; set model.activation_bits=8 .not 0.$"):
        read(saved.settings, tmp_path / "rounding")


@pytest.mark.slow
def test_a_student_starts_with_chosen_layers_of_its_teacher(flags, undisturbed, tmp_path, capsys):
    """It resumes only with that teacher. With a learning rate of almost 0, it ends with the weights it started with.

    The teacher is stored as int8, and its float values are what the student starts with.
    """
    teacher = tmp_path / "teacher"
    export.write(teacher, export.read(undisturbed / "export"), quantized=True)
    student = [
        *(*flags, *SHORT, "--config.optimizer.learning_rate=1e-12"),
        *(f"--config.init_from={teacher}", "--config.init_layers=[1]"),
        *("--config.model.layers=1", "--config.model.embeddings.segments=0"),
        "--config.tasks.bert.objective={'kind': 'distilled', 'objective': {'kind': 'mlm'}, 'own_factor': 2.0,"
        f"'teacher': '{teacher}', 'losses': {{'soft': {{'kind': 'logits'}}, 'cosine': {{'kind': 'output'}}}}}}",
        f"--workdir={tmp_path}/run",
    ]
    assert runs.call(*student) == 0
    before, after = int8.dequantize(load_file(teacher / "model.safetensors")), weights(tmp_path / "run")
    assert "encoder/embeddings/segment" not in after and not any("teacher" in path for path in after)
    for path, values in after.items():
        source = before[path][1:] if path.startswith("encoder/layers/") else before[path]
        np.testing.assert_allclose(values, source, atol=1e-8)
    records = runs.records(tmp_path / "run" / "metrics.jsonl")
    assert {"train/soft_loss", "train/cosine_loss", "train/agreement"} <= records[-1].keys()

    save_file({path: 2.0 * values for path, values in before.items()}, teacher / "model.safetensors")
    assert runs.call(*student) == 2
    assert "frozen" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "change, error",
    [
        ("init_layers=[0,2]", "init_layers=[0, 2] has 2, and init_from has the layers 0 to 1; choose among them"),
        ("init_layers=[0,-1]", "init_layers=[0, -1] has -1, and init_from has the layers 0 to 1"),
        (
            "init_layers=[1]",
            "init_layers=[1] has 1 entries and the run starts with 2 layers; list 2, or",
        ),
    ],
)
def test_layers_that_the_source_or_the_run_does_not_have(flags, undisturbed, tmp_path, capsys, change, error):
    command = [*flags, *SHORT, f"--config.init_from={undisturbed / 'export'}", f"--workdir={tmp_path}/run"]
    assert runs.call(*command, f"--config.{change}") == 2
    assert error in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("layers, expected", [((3, 1), [3, 1]), ((), [0, 1, 2, 3])])
def test_chosen_layers_keep_their_order(layers, expected):
    encoder = EncoderConfig(vocab_size=8, layers=4, sharing="feedforward")
    own, shared = np.arange(4.0)[:, None], np.ones((1, 2))
    params = {"encoder": {"layers": {"own": own, "shared": shared}}}
    model = export.Export({}, encoder, params, None, {})
    result = init_from._with_layers(model, layers)["encoder"]["layers"]
    assert result["own"][:, 0].tolist() == expected and result["shared"] is shared
    assert params["encoder"]["layers"]["own"] is own


EXAMPLES = {
    "classification": "labeled_text",
    "multi_label": "label_sets",
    "tagging": "tagged",
    "regression": "labeled_text",
    "embedding_classification": "siamese_pairs",
    "question_answering": "questions",
}


def task(kind: str, classes=()) -> dict:
    objective = {"kind": kind} | ({"classes": list(classes)} if classes else {})
    return {"objective": objective, "examples": {"kind": EXAMPLES[kind]}}


def config_of(tasks: dict):
    return from_dict({"tasks": tasks, "init_from": "models/nli"})


def head(outputs: int) -> dict[str, np.ndarray]:
    return {"kernel": np.arange(3.0 * outputs).reshape(3, outputs), "bias": np.arange(float(outputs))}


def params_with(*path: str, outputs: int) -> dict:
    heads = head(outputs)
    for name in reversed(path):
        heads = {name: heads}
    return {"encoder": {"layers": np.ones(2)}, "heads": heads}


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind not in ("regression", "question_answering")])
@pytest.mark.parametrize(
    "theirs, ours, order",
    [
        ("entailment neutral contradiction", "contradiction entailment neutral", [2, 0, 1]),
        ("ENTAILMENT Neutral contradiction", "contradiction entailment neutral", [2, 0, 1]),
        (" ".join(f"LABEL_{n}" for n in range(12)), " ".join(map(str, range(12))), list(range(12))),
        ("0 1 10 11 2", "0 1 2 10 11", [0, 1, 4, 2, 3]),
        ("a b", "a b", [0, 1]),
    ],
)
def test_outputs_are_permuted_by_name(kind, theirs, ours, order, caplog):
    theirs, ours = theirs.split(), ours.split()
    config, params = config_of({"toy": task(kind, ours)}), None
    term = config.task.objective.term
    params = params_with(term, outputs=len(theirs))
    with caplog.at_level(logging.INFO):
        found = class_heads.match(params, {"tasks": {"other": task(kind, theirs)}}, config)
    np.testing.assert_array_equal(found["heads"][term]["bias"], order)
    np.testing.assert_array_equal(found["heads"][term]["kernel"], head(len(theirs))["kernel"][:, order])
    assert found["encoder"] is params["encoder"]
    assert params["heads"][term]["bias"].tolist() == list(range(len(theirs))), "the source is not changed"
    assert ("put into the order of the run" in caplog.text) == (theirs != ours)


def test_of_a_head_of_two_layers_only_the_last_has_outputs():
    """`bertjax.models.label_heads.LabelHead`, whose first layer is kept for other classes too."""
    config, first = config_of({"toy": task("classification", "cab")}), {"transform": {"kernel": np.eye(3)}}
    params = params_with("classification", "classifier", outputs=3)
    params["heads"]["classification"] |= first
    found = class_heads.match(params, {"tasks": {"toy": task("classification", "abc")}}, config)
    found = found["heads"]["classification"]
    assert found["classifier"]["bias"].tolist() == [2.0, 0.0, 1.0] and found["transform"] is first["transform"]
    found = class_heads.match(params, {"tasks": {"toy": task("classification", "xyz")}}, config)
    assert found["heads"] == {"classification": first}


@pytest.mark.parametrize("kind", ["classification", "tagging", "multi_label"])
@pytest.mark.parametrize("theirs", ["red green blue", "a b", "a b c d", "A a b"])
def test_a_head_for_other_classes_is_left_out(kind, theirs, caplog):
    config = config_of({"toy": task(kind, "abc")})
    term = config.task.objective.term
    params = params_with(term, outputs=len(theirs.split()))
    found = class_heads.match(params, {"tasks": {"toy": task(kind, theirs.split())}}, config)
    assert found["heads"] == {} and term in params["heads"]
    assert (
        f"init_from=models/nli has the classes {', '.join(theirs.split())} in heads/{term} and the run has a, b, c"
        in (caplog.text)
    )


def test_several_tasks_have_heads_of_their_own():
    theirs = {"one": task("classification", "ab"), "two": task("classification", "cd")}
    ours = {"two": task("classification", "dc"), "three": task("classification", "ab")}
    params = params_with("two", "classification", outputs=2)
    found = class_heads.match(params, {"tasks": theirs}, config_of(ours))
    assert found["heads"]["two"]["classification"]["bias"].tolist() == [1.0, 0.0]
    alone = config_of({"classification": task("classification", "dc")})
    nested = params_with("classification", "classification", outputs=2)
    assert class_heads.match(nested, {"tasks": theirs}, alone) is nested, "its heads are in other places"


def test_numbers_and_spans_have_no_classes(caplog):
    params = params_with("regression", outputs=1)
    with caplog.at_level(logging.INFO):
        found = class_heads.match(params, {"tasks": {"a": task("regression")}}, config_of({"b": task("regression")}))
    assert found is params and "has predicted numbers with heads/regression" in caplog.text
    spans = params_with("span", outputs=2)
    source = {"tasks": {"a": task("question_answering", ["answer"])}}
    ours = config_of({"b": task("question_answering", ["answer", "no_answer"])})
    assert class_heads.match(spans, source, ours) is spans
