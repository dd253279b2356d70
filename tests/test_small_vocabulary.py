"""A teacher with two vocabularies and its narrow student, from the command line."""

import itertools
import os
import random

import numpy as np
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax.cli import convert, extend
from bertjax.config import export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer.mixed import MixedTokenizer
from tests import runs
from tests.interop import models


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, flags of a student without a workdir): a very small BERT with the vocabulary of its student."""
    folder = tmp_path_factory.mktemp("small_vocabulary")
    export.write(folder / "bert", models.make(models.PARTS["BertForPreTraining"], models.trained()))
    words = list(map("".join, itertools.product("abc", "def", "abf", "cde")))
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(words, k=draw.randint(3, 9))).capitalize() + "." for _ in range(600)]
    documents = [" ".join(sentences[start : start + 10]) for start in range(0, 600, 10)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    small = tokenizer.train([" ".join(words[:20])] * 9, TokenizerConfig(kind="wordpiece", vocab_size=30))
    (folder / "tokenizer").mkdir()
    small.save(folder / "tokenizer")
    flags = [
        f"--config=configs/small_vocabulary.py:{folder / 'mixed'}",
        f"--config.data.corpus={folder / 'corpus.txt'}",
    ]
    flags += [f"--config.data.store={folder / 'stores'}", "--config.data.heldout_share=0.2"]
    flags += ["--config.stages=[{'steps': 40, 'seq_len': 20, 'batch': 8}]", "--config.optimizer.learning_rate=1e-2"]
    flags += ["--config.optimizer.warmup_steps=3", "--config.runtime.log_every=1", "--config.eval.rows=16"]
    return folder, [*flags, "--config.model.dropout=0.0"]


@pytest.fixture(scope="module")
def mixed(made):
    folder, _ = made
    extend.run(folder / "bert", folder / "mixed", mix=str(folder / "tokenizer"))
    return folder / "mixed"


def test_a_teacher_with_two_vocabularies(made, mixed):
    """Old rows stay, new ones are means, and the export opens."""
    before, after = export.read(made[0] / "bert"), export.read(mixed)
    assert isinstance(after.tokenizer, MixedTokenizer)
    small = tokenizer.load(made[0] / "tokenizer")
    old, size = before.encoder.vocab_size, after.encoder.vocab_size
    assert size == after.tokenizer.vocab_size > old
    for head in ("encoder/embeddings/word", "heads/mlm/word_bias"):
        rows, more = (load_file(folder / "model.safetensors")[head] for folder in (made[0] / "bert", mixed))
        assert np.array_equal(more[:old], rows) and len(more) == size
    assert len(after.tokenizer.second_ids) == small.vocab_size
    assert bertjax.load(mixed).tokenizer == after.tokenizer


@pytest.mark.slow
def test_a_student_learns_the_parameters_of_its_teacher_and_stands_alone(made, mixed, tmp_path, capsys):
    folder, flags = made
    teacher = (mixed / "model.safetensors").read_bytes()
    assert runs.call(*flags, f"--workdir={tmp_path / 'other'}", "--config.data.tokenizer.vocab_size=40") == 2
    assert "another tokenizer than the corpus; set data.tokenizer.model=TOKENIZER" in capsys.readouterr().err
    own = [f"--config.data.tokenizer.model={folder / 'tokenizer'}", "--config.data.tokenizer.lowercase=False"]
    assert runs.call(*flags, *own, f"--workdir={tmp_path / 'run'}") == 0
    curves = curves_of(tmp_path / "run")
    for name, losses in curves.items():
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), name
    assert (mixed / "model.safetensors").read_bytes() == teacher
    weights = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert not any(path.startswith("projections") for path in weights)
    student = bertjax.load(tmp_path / "run")
    assert student.module.config.width == 4 and student.tokenizer == tokenizer.load(folder / "tokenizer")
    convert.run(tmp_path / "run", tmp_path / "hf")

    devices = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
    sharded = [*flags, *own, "--config.runtime.strategy=fsdp", f"--workdir={tmp_path / 'sharded'}"]
    done = runs.finish(runs.start(*sharded, **devices))
    assert done.returncode == 0 and "fsdp=2" in done.stdout, done.stderr
    for name, losses in curves_of(tmp_path / "sharded").items():
        np.testing.assert_allclose(losses, curves[name], rtol=1e-3, err_msg=name)


def curves_of(workdir) -> dict[str, list[float]]:
    """Return the losses of all steps."""
    records = [record for record in runs.records(workdir / "metrics.jsonl") if "train/mlm_loss" in record]
    return {name: [record[f"train/{name}_loss"] for record in records] for name in ("projections", "mlm")}
