"""Every reader of states finds [CLS] and the text where XLNet's layout has them, `A [SEP] [CLS]`.

The reference is the encoder on one row without padding, whose columns are the indices of the tokens.
"""

import dataclasses
import functools
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.analysis import run
from bertjax.analysis.material import Encoded
from bertjax.analysis.parts.targets import TARGETS
from bertjax.analysis.probing import findings, tasks
from bertjax.analysis.subject import Subject
from bertjax.data.tokenizer import tokenizer_json
from bertjax.data.tokenizer.layout import template
from bertjax.inference.embed import Embed
from bertjax.inference.predictor import Predictor
from bertjax.inference.records import records_of
from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.other_heads import VocabularyHead
from bertjax.models.streams import Streams
from tests.analysis.conftest import make

MODEL = {
    "block": {"kind": "xlnet"},
    "embeddings": {"kind": "xlnet"},
    "layers": 2,
    "width": 16,
    "heads": 2,
    "feedforward": 24,
}
MODEL |= {"width": 16, "heads": 2, "feedforward": 24, "max_positions": 64, "dropout": 0.0, "attention_dropout": 0.0}


class Models(NamedTuple):
    """Two models of one tokenizer, texts of different lengths, and a labeled file of them."""

    xlnet: Subject
    classifier: Subject
    texts: list[str]
    file: str


@pytest.fixture(scope="module")
def models(tokens, sentences, tmp_path_factory) -> Models:
    cls, sep = ((tokens.piece(number), number) for number in (tokens.cls_id, tokens.sep_id))
    described = tokens.description | {"post_processor": template(cls, sep, 1, cls_last=True)}
    cls_last = tokenizer_json.from_json(json.dumps(described).encode(), "test")
    texts = sorted(sentences[:30], key=len)[:2]
    path = tmp_path_factory.mktemp("cls_last") / "dev.tsv"
    path.write_text(
        "sentence\tlabel\n" + "".join(f"{text}\t{'bad good'.split()[i % 2]}\n" for i, text in enumerate(texts))
    )
    pretraining = {"objective": {"kind": "permutation"}, "examples": {"kind": "full_sentences"}}
    labels = {"objective": {"kind": "classification", "classes": ["bad", "good"]}}
    labels |= {"examples": {"kind": "labeled_text", "train": str(path), "heldout": str(path)}}
    made = (
        Subject(name, make({"model": MODEL, "tasks": {name: task}, "stages": [{"seq_len": 64}]}, cls_last))
        for name, task in (("xlnet", pretraining), ("classifier", labels))
    )
    return Models(*made, texts, str(path))


def row_of(subject: Subject, text: str) -> np.ndarray:
    """Return the ids of `A [SEP] [CLS]`."""
    [ids] = subject.tokenizer.encode_masked([text])
    return np.array([*ids, subject.tokenizer.sep_id, subject.tokenizer.cls_id])


@functools.partial(jax.jit, static_argnames="encoder")
def encode_rows(encoder: EncoderConfig, params: dict, rows_BT, **arguments):
    """Return what the encoder computes for rows of one text each, and the values of its layers."""
    segments_BT = jnp.zeros_like(rows_BT).at[:, -1].set(2)
    cls_BN = jnp.full((len(rows_BT), 1), rows_BT.shape[1] - 1)
    variables = {"params": params, taps.CAPTURED: dict.fromkeys(("hidden", "attention"))}
    return Encoder(encoder).apply(
        variables, rows_BT, segments_BT, None, None, cls_BN, mutable=[taps.CAPTURED], **arguments
    )


def encode(subject: Subject, text: str):
    return encode_rows(subject.encoder, subject.params["encoder"], row_of(subject, text)[None])


def hidden(subject: Subject, text: str) -> np.ndarray:
    """Return the states of the tokens of a text, [L + 1, T, D]."""
    return np.asarray(encode(subject, text)[1][taps.CAPTURED]["hidden"][:, 0])


def log_probabilities(subject: Subject, text: str, columns_BK: list[list[int]]) -> np.ndarray:
    """Return those of the tokens in the columns of each row, predicted from all tokens but these; [B, K, V]."""
    rows_BT = np.tile(row_of(subject, text), (len(columns_BK), 1))
    rank_BT = np.zeros_like(rows_BT)
    np.put_along_axis(rank_BT, np.array(columns_BK), 1, axis=1)
    streams = Streams(np.array(columns_BK), rank_BT)
    encoded, _ = encode_rows(subject.encoder, subject.params["encoder"], rows_BT, streams=streams)
    params = {"params": subject.params["heads"]["plm"]}
    word_VE = subject.params["encoder"]["embeddings"]["word"]
    return np.asarray(jax.nn.log_softmax(VocabularyHead(subject.encoder).apply(params, encoded.hidden, word_VE)))


def states_of(subject: Subject, ragged, unit_of: np.ndarray) -> np.ndarray:
    encoded = Encoded(ragged, [], np.arange(len(ragged.ids)), None, subject.vocabulary, 64)
    with findings.computed(
        subject.encoder, subject.params, encoded.batches(subject.encoder), ragged, unit_of
    ) as values:
        return np.array(values)


def layers(models: Models) -> None:
    """The embeddings know no context: occurrences of a word are the same, and words differ. Later layers differ."""
    texts = [f"The king {text}" for text in models.texts] * 3
    measured = run("layers", models.xlnet, texts).numbers["xlnet"]["texts"]["contextuality"]
    assert measured["self_similarity"][0] == pytest.approx(1.0, abs=1e-6) and measured["anisotropy"][0] < 0.9
    assert measured["self_similarity"][2] < 0.999


def probes_of_cls(models: Models, pooling: str = tasks.FIRST) -> None:
    subject = models.classifier
    format = dataclasses.replace(subject.finetuned.examples, heldout=models.file)
    records = format.read(models.file)
    task = tasks.LabeledTask("toy", format, ("bad", "good"), records, records, pooling=pooling)
    units = tasks.units_of(task, records, subject.tokenizer, 64)
    found = states_of(subject, units.ragged, units.unit_of)
    for values, text in zip(found, models.texts, strict=True):
        expected_LTD = hidden(subject, text)
        expected = expected_LTD[:, -1] if pooling == tasks.FIRST else expected_LTD.mean(axis=1)
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)


def probes_of_means(models: Models) -> None:
    probes_of_cls(models, tasks.MEAN)


def word_senses(models: Models) -> None:
    subject, text = models.xlnet, "Where is the king?"
    record = {"word": "king", "sense": "a", "sentence": text}
    ragged, [place] = tasks.encode_senses([record], subject.tokenizer, 64)
    unit_of = np.where(np.arange(len(ragged.tokens)) == place, 0, -1)
    column = row_of(subject, text).tolist().index(subject.tokenizer.encode(["king"])[0][0])
    np.testing.assert_allclose(
        states_of(subject, ragged, unit_of)[0], hidden(subject, text)[:, column], rtol=1e-4, atol=1e-4
    )


def fill(models: Models) -> None:
    """Fewer masks than a view has places; the first word is seen."""
    subject, predictor = models.xlnet, Predictor(models.xlnet.export)
    for text in ("The king [MASK] old.", "A king [MASK] old.", "[MASK] king was [MASK]."):
        columns = np.flatnonzero(row_of(subject, text) == subject.tokenizer.mask_id).tolist()
        [expected_KV] = np.exp(log_probabilities(subject, text, [columns]))
        [prediction] = predictor.fill([text], top=3)
        for guesses, expected_V in zip(prediction["masks"], expected_KV, strict=True):
            found = [guess["probability"] for guess in guesses]
            np.testing.assert_allclose(found, np.sort(expected_V)[:-4:-1], rtol=1e-4)


def pseudo_log_likelihoods(models: Models) -> None:
    text = models.texts[0]
    row_T = row_of(models.xlnet, text)
    columns = np.arange(len(row_T) - 2)
    expected_TV = log_probabilities(models.xlnet, text, columns[:, None])[:, 0]
    [found] = Predictor(models.xlnet.export).pseudo_log_likelihoods([text])
    assert found == pytest.approx(expected_TV[columns, row_T[columns]].sum(), rel=1e-4)


def embeddings_of_tokens(models: Models) -> None:
    predictor = Predictor(models.xlnet.export)
    request = predictor.request(predictor.pipeline(Embed, per_token=True), records_of(models.texts))
    for prediction, text in zip(predictor.predictions(request), models.texts, strict=True):
        assert prediction["pieces"] == [
            models.xlnet.tokenizer.piece(int(token)) for token in row_of(models.xlnet, text)
        ]
        np.testing.assert_allclose(prediction["embeddings"], hidden(models.xlnet, text)[-1], rtol=1e-4, atol=1e-4)


def attention_to_cls(models: Models) -> None:
    target = run("targets", models.xlnet, models.texts).arrays["xlnet/texts/target"]
    attention = [encode(models.xlnet, text)[1][taps.CAPTURED]["attention"][:, 0] for text in models.texts]
    for name, column in (("[CLS]", -1), ("[SEP]", -2)):
        expected_LH = np.mean([values[..., column].mean(axis=2) for values in attention], axis=0)
        np.testing.assert_allclose(target[TARGETS.index(name)], expected_LH, atol=1e-5)


def rollout_of_cls(models: Models) -> None:
    for entry in run("sentences", models.classifier, models.texts).numbers["classifier"]:
        assert entry["tokens"][entry["rollout_of"]] == "[CLS]" and entry["rollout_of"] == len(entry["tokens"]) - 1


def classes(models: Models) -> None:
    subject, head = models.classifier, models.classifier.params["heads"]["classification"]
    for answer, text in zip(Predictor(subject.export).predict(models.texts), models.texts, strict=True):
        logits = encode(subject, text)[0].pooled_BND[0, 0] @ head["kernel"] + head["bias"]
        np.testing.assert_allclose(list(answer["probabilities"].values()), jax.nn.softmax(logits), rtol=1e-4)


READERS = (
    layers,
    probes_of_cls,
    probes_of_means,
    word_senses,
    fill,
    pseudo_log_likelihoods,
    embeddings_of_tokens,
    attention_to_cls,
    rollout_of_cls,
    classes,
)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_cls_is_where_the_tokenizer_puts_it(models, reader):
    reader(models)
