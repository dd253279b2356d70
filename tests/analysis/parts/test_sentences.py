"""The part `sentences`: maps, rollout, attributions and predictions by layer of a few sentences."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax import predictor
from bertjax.analysis import attribution
from bertjax.analysis.answers import Answers
from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.parts.sentences import LENGTH, MOST, TAKEN, Sentences
from bertjax.analysis.subject import Subject
from bertjax.runtime.errors import UserError
from tests import labeled_files
from tests.analysis.conftest import MODEL, make, of_run

TEXTS = ["The king is [MASK] .", "It is a government of the people ."]


@pytest.fixture(scope="module")
def result(subjects):
    return Sentences().run(subjects, [texts_material(TEXTS)])


def entry(result, subject, index=0):
    return result.numbers[subject.label][index]


@pytest.mark.slow
def test_the_token_at_a_mask_is_that_of_fill_and_its_log_probability_is_attributed(result, pretrained, models):
    numbers = entry(result, pretrained)
    [filled] = predictor(models["pretrained"]).fill(TEXTS[:1], top=1)
    [[best]] = filled["masks"]
    assert numbers["answer"] == best["piece"] == numbers["layers"][-1]["guess"]
    assert numbers["tokens"][numbers["masked"]] == "[MASK]" and numbers["rollout_of"] == numbers["masked"]
    np.testing.assert_allclose(numbers["layers"][-1]["probability"], best["probability"], rtol=1e-4)
    np.testing.assert_allclose(numbers["prediction"], np.log(best["probability"]), atol=1e-4)
    assert len(numbers["layers"]) == 4


def test_a_sentence_without_a_mask_has_its_middle_token_masked(result, pretrained):
    numbers = entry(result, pretrained, 1)
    column = numbers["masked"]
    assert column == 1 + (len(numbers["tokens"]) - 2) // 2 and numbers["answer"] == numbers["tokens"][column]
    assert numbers["attributions"][column] == 0.0  # it is [MASK] in the baseline, too


def test_a_classifier_has_its_prediction_attributed(result, finetuned, models):
    numbers = entry(result, finetuned, 1)
    [prediction] = predictor(models["finetuned"]).predict(TEXTS[1:])
    assert numbers["answer"] == prediction["prediction"] and numbers["rollout_of"] == 0
    probability = prediction["probabilities"][prediction["prediction"]]
    np.testing.assert_allclose(np.exp(numbers["prediction"]), probability, atol=1e-5)
    assert [layer["guess"] in ("bad", "good") for layer in numbers["layers"]] == [True] * 4


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
    assert attention.weights_LHTT.shape == (3, 4, length, length) and rollout.weights_LHTT.shape == (
        3,
        1,
        length,
        length,
    )
    ids = pretrained.tokenizer.encode_masked(TEXTS[:1])[0]
    tokens_BT = np.array([[pretrained.tokenizer.cls_id, *ids, pretrained.tokenizer.sep_id]], np.int32)
    batch = {"tokens_BT": tokens_BT, "examples_BT": np.ones_like(tokens_BT)}
    batch |= {"segments_BT": np.zeros_like(tokens_BT), "positions_BT": np.arange(length, dtype=np.int32)[None]}
    expected = pretrained.captured(pretrained.params, batch, ("attention",))["attention"][:, 0]
    np.testing.assert_allclose(attention.weights_LHTT, expected, atol=1e-3)  # float16
    np.testing.assert_allclose(rollout.weights_LHTT[:, 0], attribution.rollout(np.asarray(expected)), atol=1e-3)
    numbers = entry(result, pretrained)
    np.testing.assert_allclose(numbers["rollout"], rollout.weights_LHTT[-1, 0, numbers["rollout_of"]], atol=1e-3)


def test_a_model_without_heads_has_maps_and_rollout(pretrained):
    params = {"encoder": pretrained.export.params["encoder"]}
    bare = Subject("bare", pretrained.export._replace(params=params))
    assert Answers.missing(bare)
    result = Sentences().run([bare], [texts_material(TEXTS[1:])])
    assert result.numbers["bare"][0].keys() == {"text", "tokens", "rollout", "rollout_of"}
    assert len(result.maps) == 2 and not result.figures and "bare has no head" in result.text


def test_a_model_that_compares_texts_has_maps_and_rollout(choosing):
    for material in (texts_material(TEXTS[1:]), Labeled("exam dev")):
        result = Sentences().run([choosing], [material])
        assert all("answer" not in entry and entry["rollout"] for entry in result.numbers["choosing"])
        assert "choosing compares several texts" in result.text and result.maps and not result.figures


def test_questions_have_room_for_their_contexts(tokens, tmp_path):
    squad = labeled_files.squad(tmp_path / "dev.json", 4)
    task = {"objective": {"kind": "question_answering"}, "examples": {"kind": "questions", "heldout": str(squad)}}
    settings = {"model": MODEL | {"max_positions": 128, "layers": 1}, "tasks": {"qa": task}}
    subject = of_run(tmp_path / "qa", make(settings | {"stages": [{"seq_len": 128}]}, tokens))
    result = Sentences().run([subject], [Labeled("qa dev")])
    assert len(result.numbers["qa"]) == TAKEN and "qa has no head for masked tokens" in result.text


def test_the_rollout_of_a_model_that_reads_left_to_right_is_that_of_its_last_token(pretrained):
    """[CLS] sees only itself; the pooler reads the last token."""
    encoder = dataclasses.replace(pretrained.export.encoder, direction="left_to_right")
    export = pretrained.export._replace(encoder=encoder, params={"encoder": pretrained.export.params["encoder"]})
    numbers = Sentences().run([Subject("left", export)], [texts_material(TEXTS[1:])]).numbers["left"][0]
    assert numbers["rollout_of"] == len(numbers["tokens"]) - 1 and numbers["rollout"][1] > 0.01


def test_many_models_have_numbers_and_the_last_ones_maps(pretrained, monkeypatch):
    monkeypatch.setattr(Answers, "missing", staticmethod(lambda subject: "is not asked"))
    monkeypatch.setattr("bertjax.analysis.parts.sentences.SHOWN", 1)
    subjects = [Subject(label, pretrained.export) for label in ("first", "last")]
    result = Sentences().run(subjects, [texts_material(TEXTS[:1])])
    assert list(result.numbers) == ["first", "last"] and {each.model for each in result.maps} == {"last"}
    assert "the last 1 of 2 models" in result.text and len(result.tables) == 1


def test_sentences_of_a_labeled_file_are_taken_and_cut(finetuned, labeled, monkeypatch):
    monkeypatch.setattr(Answers, "missing", staticmethod(lambda subject: "is not asked"))
    result = Sentences().run([finetuned], [labeled])
    assert len(result.numbers[finetuned.label]) == TAKEN
    assert all(len(numbers["tokens"]) <= LENGTH for numbers in result.numbers[finetuned.label])
    encoded = dataclasses.replace(labeled, examples=TAKEN, length=LENGTH).encoded(finetuned)
    expected = labeled.records(finetuned)[encoded.record_of[0]]["sentence"]
    text = result.numbers[finetuned.label][0]["text"]  # as the tokens have it
    assert text.replace(" ", "") == expected.replace(" ", "").lower()


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
