"""Smaller exports: what is left of a model, what it goes on with, and cuts that are refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import bertjax
from bertjax.analysis import smaller_models
from bertjax.cli import compress, convert, report
from bertjax.cli.compress import Cuts
from bertjax.config import config_file, export
from bertjax.config.opening import SavedModel
from bertjax.models.cut import Importance
from bertjax.runtime import command_line
from bertjax.training.results import rescore
from bertjax.training.run.workdir import Workdir
from tests.interop import models

TEXTS = ["ab ad ce afe cafe", "decade faced", "a"]
DRAW = np.random.default_rng(0)


def write_importance(path, encoder):
    heads, neurons = (DRAW.uniform(size=(encoder.layers, width)) for width in (encoder.heads, encoder.feedforward))
    path.write_bytes(Importance(heads, neurons).to_json())
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A BERT with both heads."""
    folder = tmp_path_factory.mktemp("source")
    model = models.make(models.PARTS["BertForPreTraining"], models.trained())
    export.write(folder, model._replace(numbers={"steps": 9}))
    write_importance(folder / "importance.json", model.encoder)
    return folder


@pytest.fixture
def refused(source, tmp_path, capsys):
    """refused(*flags) -> the line with which the command ends; it must not have written anything."""

    def refuse(*flags: str, model=source) -> str:
        code = command_line.exit_code_of(
            lambda: compress.main([str(model), f"--to={tmp_path / 'new' / 'model'}", *flags])
        )
        error = capsys.readouterr().err
        assert code == 2 and error.startswith("error: ") and error.count("\n") == 1, error
        assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())
        return error

    return refuse


def hidden(folder):
    module, params, tokens = bertjax.load(folder)
    tokens_BT, examples_BT = tokens.rows(TEXTS, seq_len=18)
    encoded = jax.jit(module.apply)({"params": params}, tokens_BT, examples_BT=examples_BT)
    return np.asarray(encoded.hidden)[examples_BT > 0]


def test_every_cut_in_one_command(source, tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    target = tmp_path / "new" / "small"
    flags = [f"--to={target}", "--layers=1", "--heads=1", "--mlp=10", f"--importance={source / 'importance.json'}"]
    assert compress.main([str(source), *flags, f"--vocabulary={corpus}", "--quantize=int8"]) == 0
    printed = capsys.readouterr().out
    before, model = export.read(source), export.read(target)
    encoder = model.encoder
    assert (encoder.layers, encoder.heads, encoder.head_width, encoder.feedforward) == (1, 1, 8, 10)
    assert encoder.vocab_size == model.tokenizer.vocab_size < before.encoder.vocab_size
    assert model.numbers == {"before_compression": {"steps": 9}} and export.is_quantized(target)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(bertjax.load(folder).params)) for folder in (source, target)]
    assert sizes[1] < sizes[0]
    kept = np.isin(
        [before.tokenizer.piece(i) for i in range(before.encoder.vocab_size)],
        [model.tokenizer.piece(i) for i in range(encoder.vocab_size)],
    )
    words = [m.params["encoder"]["embeddings"]["word"][: m.encoder.vocab_size] for m in (before, model)]
    np.testing.assert_allclose(words[1], words[0][kept], atol=0.01)
    for line in ("layers        2 -> 1", "heads         2 -> 1", "mlp           24 -> 10", f"export        {target}"):
        assert line in printed.splitlines()
    assert "do not fill the width 16" in printed and "configs/adapt.py" in printed.splitlines()[-1]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["small"]
    settings = SavedModel(target).config.model
    assert dataclasses.replace(settings, execution=encoder.execution, vocab_size=encoder.vocab_size) == encoder
    config_file.load(f"configs/adapt.py:{target}", ["data.corpus=embedded:en"])


def test_a_trimmed_vocabulary_leaves_the_hidden_states_of_the_corpus(source, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS))
    summary = compress.run(source, tmp_path / "small", Cuts(vocabulary=str(tmp_path / "corpus.txt")))
    assert summary.encoders[1].vocab_size < summary.encoders[0].vocab_size
    np.testing.assert_array_equal(hidden(tmp_path / "small"), hidden(source))
    assert summary.parameters[1] < summary.parameters[0]


def test_cut_heads_are_zeros_in_transformers_and_compute_the_same(source, tmp_path):
    compress.run(source, tmp_path / "small", Cuts(heads=1, importance=str(source / "importance.json")))
    lines = convert.run(tmp_path / "small", tmp_path / "theirs")
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert settings["num_attention_heads"] == 2
    zeros = "1 heads of width 8 do not fill the width 16, as transformers requires: 1 heads of zeros were added"
    assert zeros in lines
    convert.run(tmp_path / "theirs", tmp_path / "back")
    np.testing.assert_allclose(hidden(tmp_path / "back"), hidden(tmp_path / "small"), atol=1e-5)


@pytest.mark.slow
def test_the_score_is_that_of_evaluate_before_and_after(undisturbed, flags, tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "_SECONDS", 0.01)
    [corpus] = [flag.partition("=")[2] for flag in flags if "corpus=" in flag]
    layers = SavedModel(undisturbed).export.encoder.layers
    summary = compress.run(undisturbed, tmp_path / "small", Cuts(layers=tuple(range(layers - 1))), score=corpus)
    before, after = summary.scores["mlm_loss"]
    assert before == rescore.run(str(undisturbed), corpus)["eval"]["mlm_loss"]
    small = SavedModel(tmp_path / "small")
    config = SavedModel(undisturbed).config_of(small.settings)
    assert after == rescore.score(small, config, corpus)["eval"]["mlm_loss"] != before
    assert summary.baselines["unigram_loss"][0] == summary.baselines["unigram_loss"][1]


@pytest.mark.slow
def test_an_export_is_scored_on_the_named_file_alone(tmp_path, monkeypatch):
    """Its baselines are those of this file: the training file that it names is not opened."""
    rows = [json.dumps({"sentence": text, "label": label}) for text in TEXTS for label in ("bad", "good", "ü, so-so")]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    model = models.fine_tuned("classification", models.trained())
    [task] = model.settings["tasks"].values()
    task["examples"] |= {"train": str(tmp_path / "train.jsonl"), "heldout": str(tmp_path / "dev.jsonl")}
    export.write(tmp_path / "run" / "export", model)
    monkeypatch.setattr(compress, "_SECONDS", 0.01)
    summary = compress.run(
        tmp_path / "run" / "export", tmp_path / "small", quantized=True, score=str(tmp_path / "dev.jsonl")
    )
    assert min(summary.milliseconds) > 0 and "ms a text (median, in JAX" in compress._text(summary)
    assert summary.baselines["majority_accuracy"] == pytest.approx((1 / 3, 1 / 3)) and "accuracy" in summary.scores
    assert str(tmp_path) not in (tmp_path / "small" / "bertjax.json").read_text()


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "nothing to compress; give --layers, --heads, --mlp, --vocabulary or --quantize"),
        (["--layers=0,2"], "--layers=0,2 does not fit a model of 2 layers; list different layers from 0 to 1"),
        (["--layers=1,0"], "--layers=1,0 does not fit"),
        (["--layers=one"], "--layers=one is not a list of numbers"),
        (["--heads=1"], "--heads=1 needs --importance=FILE to order heads; make one with"),
        (["--heads=2", "--importance=x"], "--heads=2 is not a cut of 2 heads; give a number from 1 to 1"),
        (["--mlp=0"], "--mlp: 0 must be a whole number, at least 1"),
        (["--mlp=24", "--importance=x"], "--mlp=24 is not a cut of 24 feed-forward neurons"),
        (["--mlp=2", "--importance=missing.json"], "missing.json is not an importance.json"),
        (["--layers=0", "--importance=x"], "--importance=x orders heads and neurons; add --heads or --mlp"),
        (["--vocabulary=missing.txt"], "missing.txt"),
        (["--text-field=body"], "nothing to compress"),
        (["--layers=0", "--text-field=body"], "--text-field=body is a field of the corpus of --vocabulary; add"),
        (["--quantize=int4"], "argument --quantize: invalid choice: 'int4'"),
    ],
)
def test_cuts_that_are_refused(refused, flags, message):
    assert message in refused(*flags)


def test_models_that_a_cut_does_not_fit(refused, source, tmp_path):
    albert = models.make(frozenset({"pooler", "mlm"}), models.trained(), "albert")
    export.write(tmp_path / "albert", albert)
    message = refused("--layers=0,1", model=tmp_path / "albert")
    assert "--layers=0,1 has no effect on a model whose layers share parameters (model.sharing=all)" in message
    mobile = models.make(frozenset({"mlm"}), models.trained(), "mobilebert")
    export.write(tmp_path / "mobile", mobile)
    message = refused("--mlp=7", "--importance=importance.json", model=tmp_path / "mobile")
    assert (
        "--mlp=7 cuts one feed-forward network of a layer, and the model has model.block.feedforwards=2; cut" in message
    )
    export.write(tmp_path / "int8", export.read(source), quantized=True)
    assert "int8 has int8 weights already; leave out --quantize" in refused("--quantize=int8", model=tmp_path / "int8")
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "empty.txt" in refused(f"--vocabulary={tmp_path / 'empty.txt'}")
    manifest = source / "bertjax.json"
    assert f"{manifest} is not an importance.json" in refused("--mlp=2", f"--importance={manifest}")


def test_the_page_of_a_run_lists_what_was_made_of_it(undisturbed, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    assert not smaller_models.sections_of(Workdir.at(run))
    for source, flags in ((run, ["--layers=0"]), (run / "export", ["--quantize=int8"])):
        assert compress.main([str(source), f"--to={tmp_path / flags[0][2:]}", *flags]) == 0
        assert f"bertjax report {run} lists" in capsys.readouterr().out
    (run / smaller_models.FILE).rename(tmp_path / "kept")
    (run / smaller_models.FILE).mkdir()  # what cannot be written costs no model
    assert compress.main([str(run), f"--to={tmp_path / 'other'}", "--quantize=int8"]) == 0
    assert "will not list it" in capsys.readouterr().out
    (run / smaller_models.FILE).rmdir()
    (tmp_path / "kept").rename(run / smaller_models.FILE)
    [section] = smaller_models.sections_of(Workdir.at(run))
    cut, quantized = section.blocks[0].rows
    assert cut[0].endswith(f"bertjax compress {run} --to={tmp_path / 'layers=0'} --layers=0")
    assert "(100.0%)" not in cut[1] and "(100.0%)" in quantized[1] and "not scored" in cut
    with (run / smaller_models.FILE).open("a") as file:
        file.write('{"command": "", "parameters": [0, 1], "bytes": 1, "scores": {}, "milliseconds": null}\n')
    [damaged] = smaller_models.sections_of(Workdir.at(run))
    assert "is damaged" in damaged.skipped
    (run / smaller_models.FILE).write_text("".join((run / smaller_models.FILE).read_text().splitlines(True)[:-1]))
    page = report.run(run, tmp_path / "page.html").read_text()
    assert "Smaller models" in page and "--quantize=int8" in page


def test_a_model_of_no_run_has_no_list(source, tmp_path, capsys):
    assert compress.main([str(source), f"--to={tmp_path / 'small'}", "--quantize=int8"]) == 0
    assert "bertjax report" not in capsys.readouterr().out and not list(source.glob("smaller*"))
