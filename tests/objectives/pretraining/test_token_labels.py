"""Capitals, and tokens that occur again in a document: features, labels and losses."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data import tokenizer
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.formats import FORMATS
from bertjax.data.preparation.prepare import prepare
from bertjax.objectives.pretraining.span_boundary import SpanBoundary, places
from bertjax.objectives.pretraining.token_labels import CapitalPrediction, TokenDocumentRelation, case_pairs
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from tests import batches, ragged

# Pieces 7, 8, ... of a vocabulary; the first six are three with two spellings.
PIECES = ["King", "king", "The", "the", "USA", "usa", "London", "##ing", "."]
PAIRS = [[7, 8], [9, 10], [11, 12]]
ING = 14
VOCABULARY = dataclasses.replace(ragged.VOCABULARY, size=16, continuation_ids=(ING,))
# King The the USA usa London ing . king | The usa ing King king . the USA ing, with [CLS] and [SEP]
TEXTS = [[7, 9, 10, 11, 12, 13, ING, 15, 8], [9, 12, ING, 7, 8, 15, 10, 11, ING]]


def tokenizer_of(pieces: list[str]) -> SimpleNamespace:
    special = [f"[S{number}]" for number in range(7)]
    return SimpleNamespace(
        vocab_size=7 + len(pieces),
        special_ids=frozenset(range(7)),
        piece=lambda token: (special + pieces)[token],
        decode=lambda tokens: "".join((special + pieces)[token] for token in tokens),
    )


def test_bytes_that_are_not_text_have_no_spellings():
    text = ["Gar 가각간 à la carte, Ça va? GAR, gar", "가나다라 마바사 The the"] * 30
    bytewise = tokenizer.train(text, TokenizerConfig(kind="byte_bpe", vocab_size=300))
    pairs = case_pairs(bytewise)
    assert len(pairs)
    for capital, lower in pairs.tolist():
        assert bytewise.decode([capital]).lower() == bytewise.decode([lower]) != bytewise.decode([capital])


def capital_features(epoch: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The features of examples of these pieces, and their tokens [B, T] as they were."""
    texts = [np.array([ragged.CLS, *text, ragged.SEP]) for text in TEXTS]
    placed = ragged.one_a_row(ragged.of(texts, np.arange(2)), VOCABULARY)
    objective = CapitalPrediction().copy_with(case_pairs=np.array(PAIRS, np.int32))
    draw = dataclasses.replace(ragged.first_epoch(placed.ragged), epochs=np.full(2, epoch))
    return objective.features(placed, draw), placed.tokens_to_rows(placed.ragged.tokens)


def test_the_encoder_reads_lower_case_and_capitals_are_labeled():
    batch, tokens_BT = capital_features()
    assert batch["capital_labels_BT"].tolist() == [
        [-1, 1, 1, 0, 1, 0, -1, -1, -1, 0, -1],
        [-1, 1, -1, -1, 1, 0, -1, 0, -1, -1, -1],  # not of words of two pieces, whose cut would tell
    ]
    for epoch in range(8):  # random replacements are in lower case, too
        batch, _ = capital_features(epoch)
        assert not np.isin(batch["tokens_BT"], [7, 9, 11]).any()
    masked_BT = np.zeros(tokens_BT.shape, bool)
    rows, places = np.nonzero(batch["mlm_weights_BK"])
    masked_BT[rows, batch["mlm_positions_BK"][rows, places]] = True
    lower_BT = np.where(np.isin(tokens_BT, [7, 9, 11]), tokens_BT + 1, tokens_BT)
    np.testing.assert_array_equal(batch["tokens_BT"][~masked_BT], lower_BT[~masked_BT])
    # What is predicted is the piece in lower case, as the pieces around it.
    columns = batch["mlm_positions_BK"][rows, places]
    np.testing.assert_array_equal(batch["mlm_labels_BK"][rows, places], lower_BT[rows, columns])


def test_a_tokenizer_without_capitals_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Every Good Boy ate {count} pears." for count in range(40)))
    lower = TokenizerConfig(kind="wordpiece", vocab_size=60, lowercase=True)
    where = DataConfig(str(tmp_path / "corpus.txt"), heldout_share=0.5, tokenizer=lower, store=str(tmp_path))
    with pytest.raises(
        UserError, match="^objective.kind=capitals learns which pieces .*data.tokenizer.lowercase=False"
    ):
        CapitalPrediction().bind(prepare(where))


def test_the_pairs_come_from_the_tokenizer_of_the_store(store):
    pairs = CapitalPrediction().bind(store).case_pairs
    assert len(pairs) > 10
    for capital, lower in pairs.tolist():
        piece = store.tokenizer.piece(capital)
        assert piece.lower() == store.tokenizer.piece(lower) != piece


@pytest.fixture(scope="module")
def court(tmp_path_factory):
    """A store of a few words, each in both spellings."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("court")

    def sentence() -> str:
        return " ".join(draw.choice(["king", "queen", "the", "a", "saw", "met"], draw.integers(3, 9))).capitalize()

    documents = ["\n".join(sentence() for _ in range(draw.integers(2, 40))) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    words = TokenizerConfig(kind="wordpiece", vocab_size=60)
    where = DataConfig(
        str(folder / "corpus.txt"), heldout_share=0.2, splitter="line", tokenizer=words, store=str(folder)
    )
    return prepare(where)


@pytest.mark.parametrize(
    ("objective", "examples", "term"),
    [(CapitalPrediction(), "doc_sentences", "capital"), (TokenDocumentRelation(), "token_document", "elsewhere")],
)
def test_the_head_predicts_every_labeled_token(court, objective, examples, term):
    config = Config(tasks={"task": Task(objective, FORMATS.class_of(examples)(), row_examples=2)})
    batch = Feeds(config, court).feed("train", 48).batch(np.arange(12))
    labels_BT = batch[f"{term}_labels_BT"]
    assert set(np.unique(labels_BT)) == {-1, 0, 1} and (labels_BT[batch["examples_BT"] == 0] == -1).all()

    encoder = dataclasses.replace(batches.ENCODER, vocab_size=court.tokenizer.vocab_size, max_positions=48)
    module = objective.model(encoder)
    params = batches.filled(batches.param_shapes(objective, module.config, batch))
    assert set(params["heads"]) == {"mlm", term}

    @jax.jit
    def compute(params, batch):
        sums, metrics = objective.terms(module, params, None, batch, jax.random.key(0), False)
        return objective.apply(module, params, batch)[term], sums, metrics

    logits_BT, sums, metrics = compute(params, batch)
    logits_BT = np.asarray(logits_BT, np.float64)
    asked_BT, yes_BT = labels_BT >= 0, labels_BT == 1
    chance_BT = 1 / (1 + np.exp(-logits_BT))
    loss = -np.log(np.where(yes_BT, chance_BT, 1 - chance_BT))[asked_BT].sum()
    np.testing.assert_allclose(sums[term], loss, rtol=1e-5)
    weights = objective.weights(batch)
    assert set(sums) == set(weights) == {"mlm", term} and weights[term] == asked_BT.sum()
    right_BT = (logits_BT > 0) == yes_BT
    assert metrics[f"{term}_accuracy"] == (right_BT[asked_BT].sum(), asked_BT.sum())
    assert metrics[f"{term}_precision"] == ((yes_BT & (logits_BT > 0)).sum(), (asked_BT & (logits_BT > 0)).sum())
    assert metrics[f"{term}_recall"] == (right_BT[yes_BT].sum(), yes_BT.sum())
    baselines = objective.baselines(batch, np.ones(court.tokenizer.vocab_size))
    right, weight = baselines[f"{term}_majority"]
    assert right.tolist() == [(asked_BT & ~yes_BT).sum(), yes_BT.sum()] and weight == asked_BT.sum()
    assert "unigram_loss" in baselines


LENGTHS, IDS = np.array([40, 60, 64, 30]), np.arange(4)


def features(objective: SpanBoundary) -> dict[str, np.ndarray]:
    examples = ragged.random(LENGTHS, IDS)
    return objective.features(ragged.one_a_row(examples), ragged.first_epoch(examples))


def test_boundaries_are_the_nearest_tokens_that_are_not_predicted():
    batch = features(SpanBoundary(longest=64))
    predicted_BT = np.zeros(batch["tokens_BT"].shape, bool)
    rows, spots = np.nonzero(batch["mlm_weights_BK"])
    columns = batch["mlm_positions_BK"][rows, spots]
    predicted_BT[rows, columns] = True
    assert predicted_BT.sum() > 20
    for row, spot, column in zip(rows, spots, columns):
        left, right = column, column
        while predicted_BT[row, left]:
            left -= 1
        while predicted_BT[row, right]:
            right += 1
        assert batch["sbo_left_positions_BK"][row, spot] == left
        assert batch["sbo_right_positions_BK"][row, spot] == right
        assert batch["sbo_places_BK"][row, spot] == column - left - 1
        assert batch["sbo_weights_BK"][row, spot] == 1.0
    assert batch["sbo_places_BK"].max() >= 3  # there are spans


def test_tokens_too_deep_in_a_span_are_not_predicted_from_its_boundaries():
    batch, all_of_it = features(SpanBoundary(longest=2)), features(SpanBoundary(longest=64))
    expected = (all_of_it["sbo_places_BK"] < 2) & (all_of_it["mlm_weights_BK"] > 0)
    np.testing.assert_array_equal(batch["sbo_weights_BK"] > 0, expected)
    assert 0 < expected.sum() < (all_of_it["mlm_weights_BK"] > 0).sum()
    assert batch["sbo_places_BK"].max() == 1


def test_places_count_adjoining_tokens_on_both_sides():
    chosen = np.array([0, 1, 1, 1, 0, 0, 1, 0, 1, 1], bool)
    before, after = places(chosen)
    assert before.tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0, 1]
    assert after.tolist() == [0, 2, 1, 0, 0, 0, 0, 0, 1, 0]


def test_a_prediction_reads_the_boundaries_and_the_place_only():
    """Its gradient with respect to the last hidden states is zero within the span and everywhere else."""
    batch = batches.make(rows=2) | {
        "sbo_left_positions_BK": np.full((2, 1), 2, np.int32),
        "sbo_right_positions_BK": np.full((2, 1), 6, np.int32),
        "sbo_places_BK": np.ones((2, 1), np.int32),
    }
    batch["mlm_positions_BK"] = np.full((2, 1), 4, np.int32)
    module = SpanBoundary().model(batches.ENCODER)
    params = batches.filled(batches.param_shapes(SpanBoundary(), module.config, batch))

    def of_hidden(model, hidden_BTD):
        left_BKD, right_BKD = (
            jnp.take_along_axis(hidden_BTD, batch[f"sbo_{side}_positions_BK"][..., None], axis=1)
            for side in ("left", "right")
        )
        return model.head("sbo", left_BKD, right_BKD, batch["sbo_places_BK"], model.word_VE)

    def gradient(model):
        hidden_BTD = model.encode(batch).hidden
        return jax.grad(lambda hidden: of_hidden(model, hidden)[..., 7].sum())(hidden_BTD)

    gradient = jax.jit(functools.partial(module.apply, method=gradient))({"params": params})
    reached = np.abs(gradient).max(axis=-1) > 0
    assert np.flatnonzero(reached[0]).tolist() == [2, 6]


def test_logits_read_the_boundaries_and_the_places():
    batch = batches.make(rows=2)
    extra = {name: np.full((2, 8), column, np.int32) for name, column in (("left", 1), ("right", 5))}
    batch |= {f"sbo_{side}_positions_BK": values for side, values in extra.items()}
    module = SpanBoundary().model(batches.ENCODER)
    batch["sbo_places_BK"] = np.arange(8, dtype=np.int32)[None].repeat(2, axis=0)
    params = batches.filled(batches.param_shapes(SpanBoundary(), module.config, batch))
    apply = jax.jit(functools.partial(SpanBoundary().apply, module))
    logits = apply(params, batch)
    assert logits["sbo"].shape == logits["mlm"].shape
    assert len({row.tobytes() for row in np.asarray(logits["sbo"][0])}) == 8  # the place distinguishes them
    other = batch | {"mlm_positions_BK": np.zeros_like(batch["mlm_positions_BK"])}
    np.testing.assert_array_equal(apply(params, other)["sbo"], logits["sbo"])


def test_both_losses_are_summed_over_their_weights():
    objective, batch = SpanBoundary(longest=3), features(SpanBoundary(longest=3))
    weights = objective.weights(batch)
    assert set(weights) == {"mlm", "sbo"} and objective.loss_weights(weights, step=0) == {}
    assert weights["sbo"] == batch["sbo_weights_BK"].sum() < weights["mlm"]
    logits = {name: jnp.zeros((*batch["mlm_labels_BK"].shape, 8)) for name in ("mlm", "sbo")}
    labels = batch | {"mlm_labels_BK": np.zeros_like(batch["mlm_labels_BK"])}
    sums, metrics = objective.terms_of(logits, labels)
    np.testing.assert_allclose(sums["sbo"], weights["sbo"] * np.log(8), rtol=1e-6)
    assert metrics["sbo_accuracy"][1] == weights["sbo"]
