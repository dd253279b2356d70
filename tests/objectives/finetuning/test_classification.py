"""Classification and regression: terms, scores and predictions, on packed rows as on rows of one example."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, softmax
from sklearn.metrics import f1_score, matthews_corrcoef
from sklearn.utils.class_weight import compute_class_weight

from bertjax.data.batch import Draw, core, place
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.model import Model
from bertjax.objectives.finetuning import calibration
from bertjax.objectives.finetuning.labels import Classification, Regression
from bertjax.runtime.errors import UserError

T = 32
CLASSES = ("maybe", "no", "yes")

# Four examples in rows of one, and packed. All batches have one shape, so that one program computes them.
SINGLE = [[0, -1, -1], [1, -1, -1], [2, -1, -1], [3, -1, -1]]
PACKED = [[0, 1, -1], [2, 3, -1], [-1, -1, -1], [-1, -1, -1]]


def batch_of(objective, ragged, rows_BN, store) -> dict:
    placed = place(ragged, np.array(rows_BN), T, Vocabulary.of(store.tokenizer))
    return core(placed) | objective.features(placed, Draw(0, np.zeros(len(ragged.ids), np.int64)))


@functools.partial(jax.jit, static_argnames=("objective", "module", "train"))
def terms_of(objective, module, params, batch, seed=1, train=False):
    return objective.terms(module, params, None, batch, jax.random.key(seed), train)


@pytest.fixture(scope="module", params=[Classification(CLASSES), Regression()], ids=["classification", "regression"])
def case(request, store):
    return case_of(request.param, store)


def case_of(objective, store):
    """(objective, module, params, four examples)."""
    encoder = EncoderConfig(store.tokenizer.vocab_size, layers=2, width=16, heads=2, feedforward=32, max_positions=T)
    first = [[20, 21, 22], [30], [40, 41], [50, 51, 52, 53, 54]]
    labels = np.array([0, 2, 1, 2], np.int32 if objective.classes else np.float32)
    ragged = add_special_tokens(first, [[60, 61]] * 4, Vocabulary.of(store.tokenizer), {"label": labels})
    module = objective.model(dataclasses.replace(encoder, init_stddev=0.5))
    batch = batch_of(objective, ragged, PACKED, store)
    params = jax.jit(lambda key: objective.init(module, key, batch))(jax.random.key(0))
    return objective, module, params, ragged


@pytest.mark.slow
def test_packed_rows_give_the_terms_of_single_ones(case, store):
    objective, module, params, ragged = case
    results = []
    for rows_BN in (SINGLE, [[2, 0, -1], [3, -1, -1], [-1, -1, 1], [-1, -1, -1]], PACKED):
        batch = batch_of(objective, ragged, rows_BN, store)
        assert float(objective.weights(batch)[objective.term]) == 4.0
        results.append(terms_of(objective, module, params, batch))
    for terms, metrics in results[1:]:
        np.testing.assert_allclose(terms[objective.term], results[0][0][objective.term], rtol=1e-5)
        for name, (total, weight) in metrics.items():
            np.testing.assert_allclose((total, weight), results[0][1][name], rtol=1e-6)


def test_the_last_layer_is_computed_at_the_summary_positions_only(case, store):
    """The result equals that of all positions, for less work."""
    objective, module, params, ragged = case
    batch = batch_of(objective, ragged, [[0, 1], [2, 3]], store)
    unrolled = dataclasses.replace(module.config, execution=Execution(unroll=True))  # or XLA counts one layer of a loop

    def of_summaries(params):
        return objective.apply(objective.model(unrolled), params, batch)

    def of_every_position(params):
        pooled_BND = Model(unrolled).apply({"params": params}, batch, method="encode").pooled_BND
        head = params["heads"][objective.term]
        return pooled_BND @ head["kernel"] + head["bias"]

    programs = [jax.jit(logits).lower(params).compile() for logits in (of_summaries, of_every_position)]
    np.testing.assert_allclose(*(program(params) for program in programs), rtol=1e-4, atol=1e-5)
    flops = [program.cost_analysis()["flops"] for program in programs]
    assert flops[0] < 0.8 * flops[1]


def test_terms_are_those_of_the_definition(case, store):
    objective, module, params, ragged = case
    batch = batch_of(objective, ragged, SINGLE, store)
    apply = jax.jit(lambda params: objective.apply(module, params, batch))
    logits = np.asarray(apply(params), np.float64)[:, 0]
    labels = ragged.labels["label"]
    if objective.classes:
        expected = -np.sum(np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))[np.arange(4), labels])
    else:
        expected = np.sum((logits[:, 0] - labels) ** 2)
    terms, metrics = terms_of(objective, module, params, batch)
    np.testing.assert_allclose(terms[objective.term], expected, rtol=1e-5)
    if objective.classes:
        assert float(metrics["accuracy"][0]) == np.sum(logits.argmax(-1) == labels)


def test_label_smoothing_and_class_weights(case, store):
    """Against scikit-learn's balanced weights and the definition of the smoothed cross-entropy."""
    objective, module, params, ragged = case
    if not objective.classes:
        pytest.skip("numbers have no classes")
    labels = ragged.labels["label"]
    counts = {"no": 6, "yes": 3, "maybe": 1}
    smoothed = Classification(CLASSES, balanced=True, label_smoothing=0.2).weighted(counts)
    everything = np.repeat(CLASSES, [counts[name] for name in CLASSES])
    weights = compute_class_weight("balanced", classes=np.array(CLASSES), y=everything)
    assert smoothed.class_weights == pytest.approx(weights)
    batch = batch_of(smoothed, ragged, PACKED, store)
    logits = np.asarray(objective.apply(module, params, batch), np.float64)[:2, :2].reshape(4, 3)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = 0.8 * np.eye(3)[labels] + 0.2 / 3
    losses = -(targets * log_probabilities).sum(-1)
    terms, metrics = terms_of(smoothed, module, params, batch)
    np.testing.assert_allclose(terms["classification"], np.sum(weights[labels] * losses), rtol=1e-5)
    assert float(smoothed.weights(batch)["classification"]) == pytest.approx(weights[labels].sum())
    assert float(metrics["accuracy"][0]) == np.sum(logits.argmax(-1) == labels) and float(metrics["accuracy"][1]) == 4


def test_there_is_a_weight_for_each_class():
    with pytest.raises(UserError, match="class_weights has 2 weights for 3 classes .maybe, no, yes.; give one for"):
        Classification(CLASSES, class_weights=(1.0, 2.0))


def test_scores_of_classification(case):
    ragged = case[-1]
    probabilities = np.eye(3, dtype=np.float32)[[0, 2, 2, 2]] * 0.5 + 0.1
    outputs = {"probabilities": probabilities}
    scores = Classification(CLASSES).score(outputs, ragged, [])
    labels = ragged.labels["label"].astype(int)
    assert scores["f1"] == pytest.approx(f1_score(labels, [0, 2, 2, 2], average="macro"))
    assert scores["matthews"] == pytest.approx(matthews_corrcoef(labels, [0, 2, 2, 2]))
    records = [{"sentence": "a", "_where": "x:1"}] * 4
    first = Classification(CLASSES).predictions(outputs, ragged, records)[0]
    assert first == {
        "sentence": "a",
        "prediction": "maybe",
        "probabilities": {"maybe": pytest.approx(0.6), "no": pytest.approx(0.1), "yes": pytest.approx(0.1)},
    }


def test_scores_of_regression(case):
    ragged, numbers = case[-1], np.array([0.1, 3.0, 0.9, 1.7])
    labels = ragged.labels["label"]
    scores = Regression().score({"number": numbers}, ragged, [])
    assert scores["pearson"] == pytest.approx(stats.pearsonr(numbers, labels).statistic)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(numbers, labels).statistic)
    undefined = Regression().score({"number": np.array([np.nan, 1.0, 2.0, 3.0])}, ragged, [])
    assert np.isnan([undefined["pearson"], undefined["spearman"]]).all()
    constant = Regression().score({"number": np.ones(4)}, ragged, [])
    assert constant == {
        "pearson": 0.0,
        "spearman": 0.0,
        "label_variance": pytest.approx(np.mean((labels - labels.mean()) ** 2)),
    }
    assert Regression().predictions({"number": numbers}, ragged, [{"sentence": "a"}] * 4)[1]["prediction"] == 3.0


def drawn(temperature: float, count: int = 4000, classes: int = 3, seed: int = 0):
    """Probabilities that are too sure by this temperature, and labels drawn at temperature 1."""
    random = np.random.default_rng(seed)
    logits_MC = random.normal(0.0, 2.0, (count, classes))
    labels_M = np.array([random.choice(classes, p=p) for p in softmax(logits_MC, axis=-1)])
    return softmax(logits_MC * temperature, axis=-1).astype(np.float32), labels_M


def loss(probabilities_MC: np.ndarray, labels_M: np.ndarray, temperature: float) -> float:
    """The mean cross-entropy, computed by scipy."""
    scores_MC = log_softmax(np.log(probabilities_MC.astype(np.float64)) / temperature, axis=-1)
    return -scores_MC[np.arange(len(labels_M)), labels_M].mean()


@pytest.mark.slow
@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_minimizes_the_cross_entropy(true):
    probabilities_MC, labels_M = drawn(true)
    temperature = calibration.fit_temperature(probabilities_MC, labels_M)
    assert temperature == pytest.approx(true, rel=0.1)
    grid = np.exp(np.linspace(np.log(true / 2), np.log(true * 2), 2001))
    losses = [loss(probabilities_MC, labels_M, value) for value in grid]
    assert temperature == pytest.approx(grid[np.argmin(losses)], rel=1e-3)
    scaled_MC = calibration.scaled(probabilities_MC, temperature)
    np.testing.assert_allclose(scaled_MC, softmax(np.log(probabilities_MC.astype(float)) / temperature, axis=-1))
    before, after = (calibration.expected_calibration_error(p, labels_M) for p in (probabilities_MC, scaled_MC))
    assert after < 0.03 and (true == 1.0 or after < before / 2)


def test_an_objective_reports_what_it_fits_and_applies_what_is_stored():
    probabilities_MC, labels_M = drawn(3.0)
    examples = type("Examples", (), {"labels": {"label": labels_M}})()
    outputs, records = {"probabilities": probabilities_MC}, [{"text": "a"}] * len(labels_M)
    objective = Classification(("a", "b", "c"), precision=0.9)
    assert objective.traits.tuned_settings == ("temperature", "threshold")
    scores = objective.score(outputs, examples, records)
    assert scores["ece_calibrated"] < scores["ece"] and scores["precision"] >= 0.9 and 0 < scores["coverage"] < 1
    assert "accepted" not in objective.predictions(outputs, examples, records)[0]
    stored = Classification(("a", "b", "c"), temperature=scores["temperature"], threshold=scores["threshold"])
    assert stored.score(outputs, examples, records) == pytest.approx(scores)
    predictions = stored.predictions(outputs, examples, records)
    assert np.mean([record["accepted"] for record in predictions]) == pytest.approx(scores["coverage"])
    scaled_C = calibration.scaled(probabilities_MC[:1], scores["temperature"])[0]
    assert list(predictions[0]["probabilities"].values()) == pytest.approx(scaled_C.tolist(), abs=1e-6)
    assert Classification().traits.tuned_settings == ("temperature",)
