"""Evaluation: metrics over all rows, baselines, samples, and scores."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.objectives import KINDS
from bertjax.objectives.host import Output
from bertjax.objectives.pretraining.electra import Electra
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.evaluation import Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import labeled_files as labeled_source
from bertjax.training.setup import Setup, init_frozen, init_state, make_setups
from tests import labeled_files
from tests.training import test_flops

ROWS, BATCH = 10, 4


@dataclasses.dataclass(frozen=True)
class Scored(BERT):
    """BERT with a score that only holds where outputs and examples come in the same order."""

    best_metric = "examples"

    def outputs(self, model, params, batch):
        lengths_BN = (batch["examples_BT"] > 0).sum(axis=1, keepdims=True)
        return {"length": Output(lengths_BN, per="example"), "token": Output(batch["tokens_BT"], per="token")}

    def score(self, outputs, examples, records):
        assert not records
        assert outputs["token"].shape == examples.tokens.shape
        return {"in_order": float((outputs["length"] == examples.lengths).mean()), "examples": len(examples.ids)}

    def samples(self, outputs, batch, tokenizer):
        return []


def setup_of(store, batch: int = BATCH, objective=None) -> Setup:
    config = from_dict(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32},
            "optimizer": {"warmup_steps": 0},
            "stages": [{"steps": 1, "seq_len": 32, "batch": batch}],
            "eval": {"rows": ROWS, "samples": 2},
        }
    )
    if objective:
        task = dataclasses.replace(config.task, objective=objective)
        config = dataclasses.replace(config, tasks={"bert": task})
    return make_setups(config, store.tokenizer.vocab_size)[0]


def evaluate(store, **choices) -> Evaluator:
    setup = setup_of(store, **choices)
    return Evaluator(setup, Feeds(setup.config, store), init_frozen([setup])[setup])


@pytest.fixture(scope="module")
def params(store):
    return init_state(setup_of(store))["params"]


@pytest.fixture(scope="module")
def evaluation(store, params):
    return evaluate(store)(params)


@pytest.mark.slow
def test_metrics_are_sums_over_all_rows(store, params, evaluation):
    """Ten rows in batches of four and in one of ten: the two empty rows of the last one count nothing."""
    whole = setup_of(store, batch=ROWS)
    loss = whole.losses["bert"]
    batch = Feeds(whole.config, store).heldout["bert"].batch(np.arange(ROWS))

    def terms(params, batch):
        sums, metrics = loss.objective.terms(loss.model, params, None, batch, jax.random.key(0), False)
        return sums, loss.objective.weights(batch), metrics

    sums, weights, metrics = jax.jit(terms)(params, batch)
    expected = {f"{term}_loss": float(sums[term] / weights[term]) for term in sums}
    expected |= {name: float(total / weight) for name, (total, weight) in metrics.items()}
    expected["mlm_bits_per_byte"] = evaluation.metrics["mlm_bits_per_byte"]
    assert evaluation.metrics == pytest.approx(expected, rel=1e-5)


def test_scores_of_batches_add_up_to_the_metrics(evaluation):
    assert evaluation.scores.keys() == evaluation.metrics.keys()
    for name, scores in evaluation.scores.items():
        assert len(scores.ids) == 3, "two batches of four rows and one of two"
        assert np.divide(*scores.sums.sum(axis=0)) == pytest.approx(evaluation.metrics[name])


def test_baselines_are_of_the_same_tokens(store, evaluation):
    batch = Feeds(setup_of(store).config, store).heldout["bert"].batch(np.arange(ROWS))
    labels = batch["mlm_labels_BK"][batch["mlm_weights_BK"] > 0]
    is_random = batch["nsp_labels_BN"][batch["nsp_weights_BN"] > 0]
    counts = store.unigram_counts("train")
    probabilities = (counts + 1) / (counts + 1).sum()
    assert evaluation.baselines == pytest.approx(
        {
            "unigram_loss": -np.log(probabilities[labels]).mean(),
            "majority_accuracy": (labels == counts.argmax()).mean(),
            "nsp_majority": max(np.mean(is_random), 1 - np.mean(is_random)),
        }
    )


def test_the_loss_is_also_in_bits_per_byte(store, evaluation):
    heldout = store.manifest["splits"]["heldout"]
    nats_a_byte = evaluation.metrics["mlm_loss"] * heldout["tokens"] / heldout["bytes"]
    assert evaluation.metrics["mlm_bits_per_byte"] == pytest.approx(nats_a_byte / np.log(2))


def test_masked_words_of_a_labeled_file(store, tmp_path):
    """Training on the texts of a task (Gururangan et al., 2020): baselines and bits per byte are those of its texts."""
    train, heldout = labeled_files.write(tmp_path)
    examples = {"kind": "labeled_text", "train": str(train), "heldout": str(heldout), "label": ""}
    settings = to_dict(setup_of(store).config) | {
        "tasks": {"task": {"objective": {"kind": "mlm"}, "examples": examples}}
    }
    config, tokenizer = from_dict(settings), store.tokenizer
    [setup], feeds = make_setups(config, tokenizer.vocab_size), Feeds(config, labeled_source(config, tokenizer))
    evaluation = Evaluator(setup, feeds, init_frozen([setup])[setup])(init_state(setup)["params"])

    texts = [[record["sentence"] for record in labeled_files.sentences(*size)] for size in ((160, 0), (40, 1))]
    counts = np.bincount(np.concatenate(tokenizer.encode(texts[0])), minlength=tokenizer.vocab_size) + 1
    batch = feeds.heldout["task"].batch(np.arange(ROWS))
    labels = batch["mlm_labels_BK"][batch["mlm_weights_BK"] > 0]
    assert evaluation.baselines["unigram_loss"] == pytest.approx(-np.log((counts / counts.sum())[labels]).mean())
    tokens_per_byte = sum(map(len, tokenizer.encode(texts[1]))) / len("".join(texts[1]))
    bits = evaluation.metrics["mlm_loss"] * tokens_per_byte / np.log(2)
    assert evaluation.metrics["mlm_bits_per_byte"] == pytest.approx(bits)
    with pytest.MonkeyPatch.context() as patch:  # the next evaluation does not tokenize the same texts again
        patch.setattr(type(tokenizer), "encode", lambda *_: pytest.fail("encoded again"))
        assert feeds.store.tokens_per_byte("heldout") == pytest.approx(tokens_per_byte)


@pytest.mark.slow
def test_electras_best_checkpoint_has_the_lowest_loss_of_detection(store):
    """Not the highest accuracy: a model that takes every token for an original is right about almost all of them."""
    evaluation = evaluate(store, objective=Electra())(init_state(setup_of(store, objective=Electra()))["params"])
    assert evaluation.rank == evaluation.metrics["rtd_loss"] > 0
    assert {"generator_loss", "generator_accuracy"} <= evaluation.metrics.keys()
    assert "mlm_loss" not in evaluation.metrics, "it is not comparable with that of an encoder"


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_compared_by_a_score_or_by_the_loss_of_the_first_term(kind):
    """By name: `jax.jit` sorts the keys of dicts, so the first loss of an evaluation is the first by alphabet."""
    made = test_flops.setup_of(kind, test_flops.SMALL)
    objective = made.losses[kind].objective
    batch = {
        name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in test_flops.arguments(made).items()
    }
    terms = []
    jax.eval_shape(lambda batch: terms.extend(objective.weights(batch)), batch)
    assert objective.best_metric
    if objective.best_metric.endswith("_loss") and kind != "electra":  # detection is its second term
        assert objective.best_metric == f"{terms[0]}_loss"


def test_scores_get_every_example_once_and_in_order(store, params):
    scored = evaluate(store, objective=Scored())(params)
    assert (scored.metrics["in_order"], scored.metrics["examples"]) == (1.0, ROWS)
    assert scored.rank == -ROWS  # lower is better
    assert scored.samples == []
