"""A run that starts with the weights of another run."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.analysis.subject import captured
from bertjax.config.config import Config, from_dict
from bertjax.data.store import TokenStore
from bertjax.training import init_from, word_vectors
from bertjax.training.param_paths import leaves_of
from bertjax.training.resolve import resolve_encoder
from bertjax.training.setup import init_state, make_setup
from tests import runs

# A learning rate of almost 0: such a run ends with the weights that it started with.
SHORT = ["--config.stages.0.steps=5", "--config.optimizer.warmup_steps=2", "--config.optimizer.learning_rate=1e-12"]
SMALL = {"stages": [{"steps": 1, "seq_len": 32, "batch": 2}], "optimizer": {"warmup_steps": 0}}


def initial_params(config: Config) -> dict:
    return jax.device_get(init_state(make_setup(config, resolve_encoder(config, 100)))["params"])


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


def test_words_start_from_counts_of_the_text(flags, undisturbed, tmp_path, refused):
    command = [*flags, *SHORT, "--config.init_words=True"]
    assert runs.call(*command, f"--workdir={tmp_path}/new") == 0
    [folder] = (path.parent for path in Path(flags[-1].partition("=")[2]).glob("*/manifest.json"))
    store = TokenStore.open(folder)
    tokens = store.split("train").tokens
    counts = np.bincount(tokens, minlength=store.tokenizer.vocab_size)
    bias = weights(tmp_path / "new")["heads/mlm/word_bias"]
    expected = np.log(counts[counts > 0])
    np.testing.assert_allclose(bias[counts > 0] - bias[counts > 0][0], expected - expected[0], atol=1e-5)
    assert runs.losses(tmp_path / "new")[0][1] < runs.losses(undisturbed)[0][1] - 0.5
    assert runs.call(*command, f"--workdir={tmp_path}/new") == 0, "a resumed run has the same identity"
    identity = json.loads((tmp_path / "new" / "config.json").read_text())["identity"]
    assert not identity["init_from"], "bits that depend on the number of cores refuse no start"
    electra = {"kind": "electra", "embedding_sharing": "gradient_disentangled"}
    config = from_dict(SMALL | {"tasks": {"electra": {"objective": electra}}})
    setup = make_setup(config, resolve_encoder(config, len(counts)))
    started = {path for path in word_vectors.initial_params(store, setup, 0) if path.endswith("/word")}
    assert started == {"encoder/embeddings/word"}, "what the discriminator adds to it starts at 0"
    assert "exclude each other" in refused(*command[len(flags) :], f"--config.init_from={undisturbed}@100")


def test_word_vectors_are_those_of_the_whole_decomposition():
    """Of a dense matrix, pair by pair; with as many dimensions as tokens, none is left out."""
    random = np.random.default_rng(0)
    tokens = np.minimum(random.geometric(0.15, 400) - 1, 11)
    pairs = np.zeros((12, 12))
    for place, token in enumerate(tokens):
        for other in [*tokens[max(place - 5, 0) : place], *tokens[place + 1 : place + 6]]:
            pairs[token, other] += 1
    share = pairs.sum(axis=0) ** 0.75 / np.sum(pairs.sum(axis=0) ** 0.75)
    with np.errstate(divide="ignore"):
        information = np.maximum(np.log(pairs / pairs.sum(axis=1, keepdims=True) / share), 0)
    left, values, _ = np.linalg.svd(information)
    expected = left * np.sqrt(values)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = word_vectors.word_vectors(tokens, 13, 16, seed=0)
    np.testing.assert_allclose(vectors[:12] @ vectors[:12].T, expected @ expected.T, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)  # also of the token that never occurs


@pytest.mark.parametrize(
    ("positions", "embeddings"),
    [(32, {}), (256, {}), (200, {"position_offset": 2, "segments": 0}), (64, {"task_types": 3})],
)
def test_the_first_heads_start_at_their_neighbors(positions, embeddings):
    """Of rows that fill all positions; elsewhere in the encoder nothing starts otherwise."""
    sizes = {"layers": 3, "width": 256, "heads": 5, "head_width": 64, "max_positions": positions}
    config = from_dict(SMALL | {"model": sizes | {"embeddings": embeddings}, "init_neighbors": True})
    params, others = (initial_params(dataclasses.replace(config, init_neighbors=is_on)) for is_on in (True, False))
    places_BT = np.tile(np.arange(positions), (8, 1))
    batch = {
        "tokens_BT": np.random.default_rng(0).integers(0, 100, places_BT.shape),
        "positions_BT": places_BT,
        "segments_BT": places_BT // 20 % 2,
        "examples_BT": np.ones_like(places_BT),
    }
    attention_LBHTT = captured(resolve_encoder(config, 100), params, batch, ["attention"])["attention"]
    for head, offset in enumerate((-1, 1, -2, 2)):
        of_head = attention_LBHTT[0, :, head]
        shares = {other: np.mean(np.diagonal(of_head, other, 1, 2)) for other in range(3 - positions, positions - 2)}
        assert 0.4 < shares.pop(offset) and max(shares.values()) < 0.05, (head, shares)
    assert np.max(np.mean(attention_LBHTT[0, :, 4], axis=0)) < 0.1, "the fifth head starts at random"
    kernels = [f"encoder/layers/attention/{name}/kernel" for name in ("query", "key")]
    for path, leaf in leaves_of(params).items():
        other, at = leaves_of(others)[path], slice(2, None) if path in kernels else slice(None)
        assert np.allclose(leaf[at], other[at], atol=1e-7) == (path != "encoder/embeddings/position"), path


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
    "change, error",
    [
        ("init_layers=[0,2]", "init_layers=[0, 2] has 2, and init_from has the layers 0 to 1; choose among them"),
        ("init_layers=[0,-1]", "init_layers=[0, -1] has -1, and init_from has the layers 0 to 1"),
        ("init_layers=[1]", "init_layers=[1] has 1 entries and the run starts with 2 layers; list 2, or"),
    ],
)
def test_layers_that_the_source_or_the_run_does_not_have(flags, undisturbed, tmp_path, capsys, change, error):
    command = [*flags, *SHORT, f"--config.init_from={undisturbed / 'export'}", f"--workdir={tmp_path}/run"]
    assert runs.call(*command, f"--config.{change}") == 2
    assert error in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "config.json").exists()


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
        found = init_from.match_heads(params, {"tasks": {"other": task(kind, theirs)}}, config)
    np.testing.assert_array_equal(found["heads"][term]["bias"], order)
    np.testing.assert_array_equal(found["heads"][term]["kernel"], head(len(theirs))["kernel"][:, order])
    assert found["encoder"] == params["encoder"]
    assert params["heads"][term]["bias"].tolist() == list(range(len(theirs))), "the source is not changed"
    assert ("put into the order of the run" in caplog.text) == (theirs != ours)


def test_of_a_head_of_two_layers_only_the_last_has_outputs():
    """`bertjax.models.other_heads.LabelHead`, whose first layer is kept for other classes too."""
    config, first = config_of({"toy": task("classification", "cab")}), {"transform": {"kernel": np.eye(3)}}
    params = params_with("classification", "classifier", outputs=3)
    params["heads"]["classification"] |= first
    found = init_from.match_heads(params, {"tasks": {"toy": task("classification", "abc")}}, config)
    found = found["heads"]["classification"]
    assert found["classifier"]["bias"].tolist() == [2.0, 0.0, 1.0] and found["transform"] == first["transform"]
    found = init_from.match_heads(params, {"tasks": {"toy": task("classification", "xyz")}}, config)
    assert found["heads"] == {"classification": first}


@pytest.mark.parametrize("kind", ["classification", "tagging", "multi_label"])
@pytest.mark.parametrize("theirs", ["red green blue", "a b", "a b c d", "A a b"])
def test_a_head_for_other_classes_is_left_out(kind, theirs, caplog):
    config = config_of({"toy": task(kind, "abc")})
    term = config.task.objective.term
    params = params_with(term, outputs=len(theirs.split()))
    found = init_from.match_heads(params, {"tasks": {"toy": task(kind, theirs.split())}}, config)
    assert "heads" not in found and term in params["heads"]
    assert (
        f"init_from=models/nli has the classes {', '.join(theirs.split())} in heads/{term} and the run has a, b, c"
        in (caplog.text)
    )


def test_numbers_and_spans_have_no_classes():
    params, config = params_with("regression", outputs=1), config_of({"b": task("regression")})
    assert init_from.match_heads(params, {"tasks": {"a": task("regression")}}, config) is params
    spans = params_with("span", outputs=2)
    source = {"tasks": {"a": task("question_answering", ["answer"])}}
    ours = config_of({"b": task("question_answering", ["answer", "no_answer"])})
    assert init_from.match_heads(spans, source, ours) is spans
