"""The part `sentences`: maps, rollout, attributions and predictions by layer of a few sentences."""

import jax
import numpy as np
import pytest

from bertjax import predictor
from bertjax.analysis import attribution
from bertjax.analysis.material import texts_material
from bertjax.analysis.parts.sentences import MOST, Answers, Sentences
from bertjax.analysis.subject import Subject, captured
from bertjax.runtime.errors import UserError

pytestmark = pytest.mark.slow

TEXTS = ["The king is [MASK] .", "It is a government of the people ."]


@pytest.fixture(scope="module")
def result(subjects):
    return Sentences().run(subjects, [texts_material(TEXTS)])


def entry(result, subject, index=0):
    return result.numbers[subject.label][index]


def test_the_token_at_a_mask_is_that_of_fill_and_its_log_probability_is_attributed(result, pretrained, models):
    numbers = entry(result, pretrained)
    [filled] = predictor(models["pretrained"]).fill(TEXTS[:1], top=1)
    [[best]] = filled["masks"]
    assert numbers["answer"] == best["piece"] == numbers["layers"][-1]["guess"]
    assert numbers["tokens"][numbers["masked"]] == "[MASK]" and numbers["rollout_of"] == numbers["masked"]
    np.testing.assert_allclose(numbers["layers"][-1]["probability"], best["probability"], rtol=1e-4)
    np.testing.assert_allclose(numbers["prediction"], np.log(best["probability"]), atol=1e-4)
    assert len(numbers["layers"]) == 4


def test_a_sentence_without_a_mask_has_the_word_masked_whose_loss_falls_most(result, pretrained):
    numbers = entry(result, pretrained, 1)
    column, tokens = numbers["masked"], numbers["tokens"]
    assert numbers["answer"] == tokens[column]
    assert numbers["attributions"][column] == 0.0  # it is [MASK] in the baseline, too
    columns = [at for at, token in enumerate(tokens[1:-1], 1) if token != "."]
    encoded = texts_material(TEXTS[1:]).encoded(pretrained)
    row = encoded.batch(np.zeros((len(columns), 1), int), 32)
    labels = row["tokens_BT"][0, columns]
    row["tokens_BT"][np.arange(len(columns)), columns] = pretrained.vocabulary.mask_id
    answers = Answers(pretrained)
    logits_LBC = answers.by_layer(pretrained.params, row | answers.features(np.array(columns)))
    losses_LB = -jax.nn.log_softmax(logits_LBC)[:, np.arange(len(columns)), labels]
    assert columns[np.argmax(losses_LB[0] - losses_LB[-1])] == column


def test_attributions_are_complete_and_special_tokens_have_none(result, subjects):
    for subject in subjects:
        for numbers in result.numbers[subject.label]:
            difference = numbers["prediction"] - numbers["baseline"]
            print(
                f"{subject.label}: gap {numbers['gap']:.6f} of {difference:.4f}, tolerance {numbers['tolerance']:.4f}"
            )
            sizes = np.abs(numbers["attributions"]).sum()
            assert abs(sum(numbers["attributions"]) - difference) <= attribution.TOLERANCE * sizes + 1e-4
            assert numbers["attributions"][0] == numbers["attributions"][-1] == 0.0
            assert np.count_nonzero(numbers["attributions"]) >= 4
    assert "For 4 of 4 sentences" in result.text


def test_maps_are_the_attention_of_all_heads_and_the_rollout(result, pretrained, subjects):
    assert [(m.model, m.kind) for m in result.maps] == [
        (subject.label, kind) for subject in subjects for _ in TEXTS for kind in ("attention", "rollout")
    ]
    attention, rollout = result.maps[:2]
    length = len(attention.tokens)
    assert attention.weights_LHTT.shape == (3, 4, length, length)
    assert rollout.weights_LHTT.shape == (3, 1, length, length)
    ids = pretrained.tokenizer.encode_masked(TEXTS[:1])[0]
    tokens_BT = np.array([[pretrained.tokenizer.cls_id, *ids, pretrained.tokenizer.sep_id]], np.int32)
    batch = {"tokens_BT": tokens_BT, "examples_BT": np.ones_like(tokens_BT)}
    batch |= {"segments_BT": np.zeros_like(tokens_BT), "positions_BT": np.arange(length, dtype=np.int32)[None]}
    expected = captured(pretrained.encoder, pretrained.params, batch, ("attention",))["attention"][:, 0]
    np.testing.assert_allclose(attention.weights_LHTT, expected, atol=1e-3)  # float16
    np.testing.assert_allclose(rollout.weights_LHTT[:, 0], attribution.rollout(np.asarray(expected)), atol=1e-3)
    numbers = entry(result, pretrained)
    np.testing.assert_allclose(numbers["rollout"], rollout.weights_LHTT[-1, 0, numbers["rollout_of"]], atol=1e-3)


def test_of_many_given_sentences_the_first_are_analyzed(pretrained, sentences, monkeypatch):
    monkeypatch.setattr(Answers, "missing", staticmethod(lambda subject: "is not asked"))
    result = Sentences().run([pretrained], [texts_material(sentences[:30])])
    assert [numbers["text"] for numbers in result.numbers[pretrained.label]] == sentences[:MOST]
    part = Sentences()
    assert "give a shorter one" in part.missing(pretrained, [texts_material(["word " * 130])])
    assert not part.missing(pretrained, [texts_material(["word " * 130, "word"])])
    with pytest.raises(UserError, match="shorten it"):
        Sentences().run([pretrained], [texts_material(["word " * 70])])


def test_numbers_are_attributed_as_they_are(finetuned):
    """A regression: the number itself, not a log-probability."""
    settings = dict(finetuned.export.settings)
    [(name, task)] = settings["tasks"].items()
    examples = task["examples"] | {"labels": "numbers"} if "labels" in task["examples"] else task["examples"]
    settings["tasks"] = {name: task | {"objective": {"kind": "regression"}, "examples": examples}}
    params = dict(finetuned.export.params)
    head = params["heads"]["classification"]
    params["heads"] = {"regression": jax.tree.map(lambda leaf: leaf[..., :1], head)}
    subject = Subject("numbers", finetuned.export._replace(settings=settings, params=params))
    result = Sentences().run([subject], [texts_material(TEXTS[1:])])
    [numbers] = result.numbers["numbers"]
    assert "answer" not in numbers and numbers["gap"] <= numbers["tolerance"]
    np.testing.assert_allclose(numbers["layers"][-1]["number"], numbers["prediction"], atol=1e-5)
