"""Two small models on real English: one with a masked-LM head, and the same encoder fine-tuned on sentences."""

import copy
import gzip
import importlib.resources
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.analysis.material import Labeled, Texts, texts_material
from bertjax.analysis.subject import Subject, open_subjects
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.models import vocabulary
from bertjax.training.run.record import RunRecord, write_record
from bertjax.training.run.workdir import Workdir
from bertjax.training.shapes import batch_shapes

MODEL = {"layers": 3, "width": 32, "heads": 4, "feedforward": 48, "max_positions": 64}


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Sentences of the embedded corpus, of 4 to 20 words."""
    source = importlib.resources.files("bertjax.data") / "embedded" / "en.jsonl.gz"
    with gzip.open(str(source), "rt", encoding="utf-8") as file:
        text = " ".join(json.loads(next(file))["text"] for _ in range(40))
    parts = [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text)]
    return [part for part in dict.fromkeys(parts) if 4 <= len(part.split()) <= 20 and len(part) <= 100]


@pytest.fixture(scope="session")
def tokens(sentences) -> Tokenizer:
    """WordPiece of 700 pieces."""
    return tokenizer.train(sentences, TokenizerConfig(kind="wordpiece", vocab_size=700, lowercase=True))


def make(settings: dict, tokens: Tokenizer, encoder_params: dict | None = None) -> Export:
    """Return a model of these settings; all of its values are random."""
    config = from_dict(settings)
    encoder = config.encoder(tokens.vocab_size, "cpu")
    objective = config.task.objective
    batch = batch_shapes(config.task, tokens.vocab_size, MODEL["max_positions"])
    shapes = jax.eval_shape(lambda key: objective.init(objective.model(encoder), key, batch), jax.random.key(0))
    draw = np.random.default_rng(0)

    def fill(path, leaf):
        center = 1.0 if "scale" in str(path[-1]) else 0.0
        return (center + draw.normal(0, 0.2, leaf.shape)).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(fill, shapes)
    if encoder_params is not None:
        params = params | {"encoder": encoder_params}
    params = vocabulary.pad(vocabulary.cut(params, encoder), encoder)
    return Export(to_dict(config), encoder, params, tokens, {})


def of_run(workdir: Path, model: Export) -> Subject:
    """Return a model as that of a run, which has its own files; there is only the record of the run."""
    config = from_dict(model.settings)
    workdir.mkdir()
    record = RunRecord(config, config, config.identity(""), model.tokenizer.vocab_size)
    write_record(Workdir.at(workdir), record, model.tokenizer)
    return Subject(workdir.name, model, SavedModel(workdir))


def with_development_set(workdir: Path, subject: Subject, path: Path) -> Subject:
    """Return a fine-tuned model as that of a run with this development set."""
    settings = copy.deepcopy(subject.export.settings)
    [task] = settings["tasks"].values()
    task["examples"]["heldout"] = str(path)
    return of_run(workdir, subject.export._replace(settings=settings))


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokens, sentences) -> dict[str, Path]:
    """{`pretrained`, `finetuned`: export folder}, and `labeled`, the labeled file of the second."""
    folder = tmp_path_factory.mktemp("models")
    draw = np.random.default_rng(1)
    lines = [f"{text.replace(chr(9), ' ')}\t{('bad', 'good')[draw.integers(2)]}" for text in sentences[:60]]
    for name, part in (("train", lines[:20]), ("dev", lines[20:])):
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *part]) + "\n", encoding="utf-8")
    pretrained = make({"model": MODEL, "stages": [{"seq_len": 64}]}, tokens)
    task = {
        "objective": {"kind": "classification", "classes": ["bad", "good"]},
        "examples": {"kind": "labeled_text", "train": str(folder / "train.tsv"), "heldout": str(folder / "dev.tsv")},
    }
    encoder = dict(pretrained.params["encoder"])
    encoder["layers"] = jax.tree.map(
        lambda leaf: leaf + 0.02 * np.sin(np.arange(leaf.size)).reshape(leaf.shape).astype(np.float32),
        encoder["layers"],
    )
    settings = {"model": MODEL, "tasks": {"toy": task}, "stages": [{"seq_len": 64}], "optimizer": {"warmup_steps": 0}}
    finetuned = make(settings, tokens, encoder)
    export.write(folder / "pretrained", pretrained)
    export.write(folder / "finetuned", finetuned)
    return {"pretrained": folder / "pretrained", "finetuned": folder / "finetuned", "labeled": folder / "dev.tsv"}


@pytest.fixture(scope="session")
def pretrained(models) -> Subject:
    """3 layers, 4 heads, width 32, masked-LM and next-sentence heads."""
    return open_subjects([models["pretrained"]])[0]


@pytest.fixture(scope="session")
def finetuned(models) -> Subject:
    """The same shapes with slightly other weights and a classifier in place of the heads."""
    return open_subjects([models["finetuned"]])[0]


@pytest.fixture(scope="session")
def subjects(pretrained, finetuned) -> list[Subject]:
    return [pretrained, finetuned]


@pytest.fixture(scope="session")
def texts(sentences) -> Texts:
    """50 sentences as a material."""
    return texts_material(sentences[:50])


@pytest.fixture(scope="session")
def labeled(models) -> Labeled:
    """The development set of the fine-tuned model, 40 sentences, `bad` or `good`."""
    return Labeled("toy", path=str(models["labeled"]))


@pytest.fixture(scope="session")
def choosing(tmp_path_factory, tokens, sentences) -> Subject:
    """A model of random values that chooses among three texts, with a development set of four long questions."""
    path = tmp_path_factory.mktemp("choosing") / "dev.jsonl"
    context = " ".join(sentences[:9])
    records = [dict(zip("abc", sentences[i:]), context=context, label=i % 3) for i in range(4)]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    task = {
        "objective": {"kind": "multiple_choice", "classes": ["0", "1", "2"]},
        "examples": {"kind": "choices", "choices": list("abc"), "heldout": str(path)},
    }
    settings = {"model": MODEL, "tasks": {"exam": task}, "stages": [{"seq_len": 192}], "optimizer": {"warmup_steps": 0}}
    return of_run(path.parent / "choosing", make(settings, tokens))


def packed_rows(lengths: np.ndarray, seq_len: int, slots: int = 3) -> np.ndarray:
    """Return examples packed into rows one after the other, rows_BN with -1 for empty slots."""
    rows, used = [[]], 0
    for index, length in enumerate(lengths):
        if used + length > seq_len or len(rows[-1]) == slots:
            rows.append([])
            used = 0
        rows[-1].append(index)
        used += length
    return np.array([row + [-1] * (slots - len(row)) for row in rows])
