"""Capitals, and tokens that a document has again: what is shown, what is asked, and what the loss is."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertjax.config import Config, Task
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.formats import format_class
from bertjax.data.preparation import prepare
from bertjax.errors import UserError
from bertjax.objectives.capitals import CapitalPrediction, OpenedCapitalPrediction, cases
from bertjax.objectives.token_document import TokenDocumentRelation
from bertjax.training.feeds import Feeds
from tests import batches, ragged

# Pieces 7, 8, ... of a vocabulary; the first three have two spellings.
PIECES = ["King", "king", "The", "the", "USA", "usa", "London", "##ing", "."]
PAIRS = [[7, 8], [9, 10], [11, 12]]


def tokenizer_of(pieces: list[str]) -> SimpleNamespace:
    special = [f"[S{number}]" for number in range(7)]
    return SimpleNamespace(
        vocab_size=7 + len(pieces), special_ids=frozenset(range(7)), piece=lambda token: (special + pieces)[token]
    )


def test_pieces_of_two_spellings_are_found():
    assert cases(tokenizer_of(PIECES)).tolist() == PAIRS
    assert cases(tokenizer_of(["king", "queen"])).shape == (0, 2)


def capital_features(epoch: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The features of examples of these pieces, and their tokens [B, T] as they were."""
    texts = [np.concatenate([[ragged.CLS], draw, [ragged.SEP]]) for draw in np.arange(36).reshape(4, 9) % 9 + 7]
    placed = ragged.one_a_row(ragged.of(texts, np.arange(4)))
    objective = OpenedCapitalPrediction(pairs=np.array(PAIRS, np.int32))
    draw = dataclasses.replace(ragged.first_epoch(placed.ragged), epochs=np.full(4, epoch))
    return objective.features(placed, draw), placed.tokens_to_rows(placed.ragged.tokens)


def test_the_text_is_shown_in_lower_case_and_capitals_are_asked_for():
    found, tokens_BT = capital_features()
    expected = {7: 1, 8: 0, 9: 1, 10: 0, 11: 1, 12: 0}
    np.testing.assert_array_equal(
        found["capital_labels_BT"], np.vectorize(lambda token: expected.get(token, -1))(tokens_BT)
    )
    for epoch in range(8):  # random replacements are in lower case, too
        found, _ = capital_features(epoch)
        assert not np.isin(found["tokens_BT"], [7, 9, 11]).any()
    masked_BT = np.zeros(tokens_BT.shape, bool)
    rows, places = np.nonzero(found["mlm_weights_BK"])
    masked_BT[rows, found["mlm_positions_BK"][rows, places]] = True
    lower_BT = np.where(np.isin(tokens_BT, [7, 9, 11]), tokens_BT + 1, tokens_BT)
    np.testing.assert_array_equal(found["tokens_BT"][~masked_BT], lower_BT[~masked_BT])
    # What is predicted is the piece as it was written.
    columns = found["mlm_positions_BK"][rows, places]
    np.testing.assert_array_equal(found["mlm_labels_BK"][rows, places], tokens_BT[rows, columns])


def test_a_tokenizer_without_capitals_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Every Good Boy ate {count} pears." for count in range(40)))
    tokenizer = TokenizerConfig(kind="wordpiece", vocab_size=60, lowercase=True)
    where = DataConfig(str(tmp_path / "corpus.txt"), heldout_share=0.5, tokenizer=tokenizer, store=str(tmp_path))
    with pytest.raises(
        UserError, match="^objective.kind=capitals learns which pieces .*data.tokenizer.lowercase=False"
    ):
        CapitalPrediction().opened(prepare(where))


def test_the_tokenizer_of_a_store_tells_the_pieces(store):
    pairs = CapitalPrediction().opened(store).pairs
    assert len(pairs) > 10
    for capital, lower in pairs.tolist():
        piece = store.tokenizer.piece(capital)
        assert piece.lower() == store.tokenizer.piece(lower) != piece


@pytest.mark.parametrize(
    ("objective", "examples", "term"),
    [(CapitalPrediction(), "doc_sentences", "capital"), (TokenDocumentRelation(), "token_document", "elsewhere")],
)
def test_the_head_answers_for_every_token_that_is_asked(store, objective, examples, term):
    config = Config(tasks={"task": Task(objective, format_class(examples)(), row_examples=2)})
    batch = Feeds(config, store).feed("train", 48).batch(np.arange(12))
    labels_BT = batch[f"{term}_labels_BT"]
    assert set(np.unique(labels_BT)) == {-1, 0, 1} and (labels_BT[batch["examples_BT"] == 0] == -1).all()

    encoder = dataclasses.replace(batches.ENCODER, vocab_size=400, max_positions=48)
    module = objective.module(encoder)
    params = batches.filled(jax.eval_shape(module.init, jax.random.key(0), batch)["params"])
    assert set(params["heads"]) == {"mlm", term}
    logits_BT = np.asarray(module.apply({"params": params}, batch)[term], np.float64)
    sums, metrics = objective.terms(module, params, None, batch, jax.random.key(0), False)
    asked_BT, yes_BT = labels_BT >= 0, labels_BT == 1
    chance_BT = 1 / (1 + np.exp(-logits_BT))
    loss = -np.log(np.where(yes_BT, chance_BT, 1 - chance_BT))[asked_BT].sum()
    np.testing.assert_allclose(sums[term], loss, rtol=1e-5)
    weights = objective.weights(batch)
    assert set(sums) == set(weights) == {"mlm", term} and weights[term] == asked_BT.sum()
    right_BT = (logits_BT > 0) == yes_BT
    assert metrics[f"{term}_accuracy"] == (right_BT[asked_BT].sum(), asked_BT.sum())
    assert metrics[f"{term}_recall"] == (right_BT[yes_BT].sum(), yes_BT.sum())
    usual = yes_BT if objective.usual else asked_BT & ~yes_BT
    found = objective.baselines(batch, np.ones(400))
    assert found[f"{term}_majority"] == (usual.sum(), asked_BT.sum()) and "unigram_loss" in found
