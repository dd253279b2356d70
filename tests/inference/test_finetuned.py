"""Fine-tuned models predict for records without labels what their objective predicts."""

import json

import jax
import numpy as np
import pytest

from bertjax.cli import merge, predict
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.inference.ensemble import Ensemble
from bertjax.inference.predictor import FineTuned, Predictor
from bertjax.inference.records import lines_of, readable_text, records_of, with_best
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from tests import batches
from tests.inference.conftest import LONGEST, sentences
from tests.inference.test_predictor import framed, hidden
from tests.models import reference


def fine_tuned(model, objective: dict, pair: str = "", examples: dict | None = None) -> export.Export:
    """The same encoder with a head whose values all differ."""
    examples = examples or {"kind": "labeled_text", "text": "one", "pair": pair}
    examples = {"train": "a.jsonl", "heldout": "b.jsonl"} | examples
    size = {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": LONGEST}
    task = {"objective": objective, "examples": examples}
    row = LONGEST * len(examples.get("choices", "-"))
    config = from_dict({"model": size, "tasks": {"task": task}, "stages": [{"seq_len": row}]})
    width = len(config.task.objective.classes) or 1
    shapes = {
        "kernel": jax.ShapeDtypeStruct((16, width), np.float32),
        "bias": jax.ShapeDtypeStruct((width,), np.float32),
    }
    heads = batches.filled({config.task.objective.term: shapes})
    return model._replace(settings=to_dict(config), params={"encoder": model.params["encoder"], "heads": heads})


@pytest.fixture(scope="module")
def classifier(model) -> export.Export:
    return fine_tuned(model, {"kind": "classification", "classes": ["bad", "fine", "good"]})


def logits(model, ids: list[int], term: str) -> np.ndarray:
    params = reference.float64(model.params)
    pooled_D = np.tanh(reference.dense(hidden(model, ids)[0], params["encoder"]["pooler"]))
    return reference.dense(pooled_D, params["heads"][term])


def test_probabilities_equal_those_of_encoder_and_head(classifier):
    texts, predictor = sentences(12, most_words=40), Predictor(classifier)
    assert predictor.default == "task"
    for text, answer in zip(texts, predictor.predict(texts), strict=True):
        ids = framed(classifier, classifier.tokenizer.encode([text])[0])
        expected_C = reference.softmax(logits(classifier, ids, "classification"))
        assert answer["one"] == text and answer["prediction"] == ["bad", "fine", "good"][expected_C.argmax()]
        np.testing.assert_allclose(list(answer["probabilities"].values()), expected_C, atol=1e-5)


def test_the_most_probable_classes_come_first(classifier):
    texts, predictor = sentences(3, most_words=5), Predictor(classifier)
    everything = predictor.predict(texts)
    request = predictor.request(predictor.pipeline(FineTuned, top=2), records_of(texts, "one"))
    for whole, short in zip(everything, predictor.predictions(request), strict=True):
        best = sorted(whole["probabilities"].items(), key=lambda pair: -pair[1])
        assert list(short["probabilities"].items()) == best[:2] and short["prediction"] == best[0][0]
        assert readable_text(whole, ["one"], 1).splitlines()[1].strip() == f"{best[0][0]} {best[0][1]:.1%}"


def test_predictions_as_text():
    tags = {"text": "Ann ran", "words": ["Ann", "ran"], "prediction": ["B-PER", "O"]}
    assert readable_text(tags, ["text"], 3) == "Ann ran\n    Ann[B-PER] ran"
    sets = {"a": "x", "probabilities": {"music": 0.857, "food": 0.651, "alarm": 0.04}, "prediction": ["music", "food"]}
    assert readable_text(sets, ["a"], 3) == "x\n    music, food   (music 85.7%   food 65.1%   alarm 4.0%)"
    assert readable_text(sets | {"prediction": []}, ["a"], 1) == "x\n    none   (music 85.7%)"
    assert readable_text({"a": "x", "b": "y", "prediction": 1.5}, ["a", "b"], 3) == "x  |  y\n    1.5"


def test_predictions_as_columns():
    fields = [{"a": 'x, "y"', "n": 3}, {"a": "z\rz\nz", "more": None}]
    predicted = {"prediction": "no", "probabilities": {"no": 0.75}}, {"prediction": ["b"], "probabilities": {"b": 0.5}}
    records, answers = [own | {"_where": "f:1"} for own in fields], [a | b for a, b in zip(fields, predicted)]
    lines = ["a,n,more,prediction,probability", '"x, ""y""",3,,no,0.75', '"z\rz\nz",,,"[""b""]",[0.5]']
    assert list(lines_of(iter(answers), "a.csv", records)) == lines
    own = {"probabilities": [1], "probability": 0}  # which a regression leaves as they are
    assert list(lines_of(iter([own | {"prediction": 2}]), "a.csv", [own]))[1] == "[1],0,2"
    assert list(map(json.loads, lines_of(iter(answers), "/dev/fd/3", records))) == answers
    with pytest.raises(UserError, match="has the field 'probability', in which its answer is written; rename it"):
        list(lines_of(iter(answers), "a.csv", [{"probability": 1, "_where": "f:1"}]))
    tie = {"prediction": "b", "probabilities": {"a": 0.5, "b": 0.5}}
    assert with_best(tie, 1)["probabilities"] == {"b": 0.5}


def test_pairs_are_read_from_records(model, tmp_path, capsys):
    regressor = fine_tuned(model, {"kind": "regression"}, pair="two")
    export.write(tmp_path / "export", regressor)
    records = [{"id": 1, "one": "abc", "two": "adf"}, {"id": 2, "one": "bce bce", "two": "cde"}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    call = [str(tmp_path / "export"), "--platform=cpu"]
    assert predict.main([*call, f"--file={path}"]) == 0
    predictions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert predictions == Predictor(regressor).predict(records)
    assert [{name: answer[name] for name in ("id", "one", "two")} for answer in predictions] == records
    path.with_suffix(".csv").write_text(",one,two\n0,abc,adf\n")  # as pandas writes an index
    assert predict.main([*call, f"--file={path.with_suffix('.csv')}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == pytest.approx(predictions[0]["prediction"], abs=1e-5)
    assert command_line.exit_code_of(lambda: predict.main([*call, "abc"])) == 2
    assert "the model reads 'one' and 'two' together; give a .jsonl file with these" in capsys.readouterr().err


@pytest.mark.parametrize(
    "precision, expected",
    [(None, []), (0.9, ["objective.threshold was not tuned: no evaluation at this step; predictions do"])],
)
def test_a_threshold_that_was_not_tuned(model, precision, expected):
    own = fine_tuned(model, {"kind": "classification", "classes": ["a", "b"], "precision": precision})
    assert [line.removesuffix(" without it") for line in FineTuned(own, LONGEST).remarks] == expected


def test_a_column_of_words_with_another_number(model, tmp_path, capsys):
    tagger = fine_tuned(model, {"kind": "tagging", "classes": ["O", "X"]}, examples={"kind": "tagged"})
    export.write(tmp_path / "model", tagger)
    (tmp_path / "a.txt").write_text("1\tabc\tO\n2\tadf\tX\n\n1\tbce\tO\n2\tcde\tX\n")
    call = [str(tmp_path / "model"), f"--file={tmp_path / 'a.txt'}", "--platform=cpu"]
    assert command_line.exit_code_of(lambda: predict.main(call)) == 2
    assert "column 0 holds the number of each word, such as '1'" in capsys.readouterr().err
    assert command_line.exit_code_of(lambda: predict.main([*call, "--word=1", "--json"])) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["words"] for record in records] == [["abc", "adf"], ["bce", "cde"]]
    assert command_line.exit_code_of(lambda: predict.main([*call, "--word=1", f"--out={tmp_path / 'a.TXT.gz'}"])) == 2
    assert "a.TXT.gz would hold the lines of --file with a tag in each; name a file in .txt" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("text,words\nabc adf,2\n")  # a column of another meaning
    assert command_line.exit_code_of(lambda: predict.main([call[0], "a", "--top=1", "--out=a.csv"])) == 2
    assert "--top=1 has no effect on the columns of --out=a.csv; leave it out, or" in capsys.readouterr().err
    assert command_line.exit_code_of(lambda: predict.main([call[0], f"--file={tmp_path / 'a.csv'}"])) == 2
    assert "a.csv:2 has the field 'words', in which its answer is written; rename it" in capsys.readouterr().err


@pytest.mark.slow
def test_the_prediction_of_several_models_is_the_one_of_their_mean(classifier, tmp_path, capsys):
    heads = jax.tree.map(lambda leaf: -leaf, classifier.params["heads"])
    other = classifier._replace(params=classifier.params | {"heads": heads})
    texts = sentences(12, most_words=40)
    answers = [[list(a["probabilities"].values()) for a in Predictor(m).predict(texts)] for m in (classifier, other)]
    together = Ensemble({"one": classifier, "two": other}).predict(texts)
    mean_RC = np.mean(answers, axis=0)
    np.testing.assert_allclose([list(a["probabilities"].values()) for a in together], mean_RC, atol=2e-6)
    assert [a["prediction"] for a in together] == [["bad", "fine", "good"][row.argmax()] for row in mean_RC]

    for name, model in (("one", classifier), ("two", other)):
        export.write(tmp_path / name, model)
    assert predict.main([str(tmp_path / "one"), f"--with={tmp_path / 'two'}", "--platform=cpu", *texts[:3]]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == together[:3]


def test_models_that_do_not_belong_together_are_refused(model, classifier, tmp_path, capsys):
    others = {
        "regression": fine_tuned(model, {"kind": "regression"}),
        "classes": fine_tuned(model, {"kind": "classification", "classes": ["bad", "good", "so-so"]}),
    }
    for name, other in others.items():
        with pytest.raises(UserError, match=f"{name} has another task than first; average models of one fine-tuning"):
            Ensemble({"first": classifier, name: other})
    tags = {"kind": "tagging", "classes": ["O", "X"]}
    tagger = fine_tuned(model, tags, examples={"kind": "tagged"})
    with pytest.raises(UserError, match="the models predict guesses without probabilities; remove"):
        Ensemble({"one": tagger, "two": tagger}).predict(["abc"])
    export.write(tmp_path / "plain", model)
    call = [str(tmp_path / "plain"), f"--with={tmp_path / 'plain'}", "--do=embed", "--platform=cpu", "abc"]
    assert command_line.exit_code_of(lambda: predict.main(call)) == 2
    assert "averages predictions of fine-tuned models, not --do=embed; remove it" in capsys.readouterr().err


def test_the_mean_of_models_has_one_meaning_per_output_and_nothing_tuned_for_one_of_them(model, tmp_path):
    own = {"kind": "classification", "classes": ["bad", "good"], "temperature": 2.0, "precision": 0.9, "threshold": 0.5}
    others = {"temperature": 3.0, "classes": ["good", "bad"], "pooling": "mean"}
    export.write(tmp_path / "one", fine_tuned(model, own))
    for name, value in others.items():
        export.write(tmp_path / name, fine_tuned(model, own | {name: value}))
    for name in ("classes", "pooling"):
        with pytest.raises(UserError, match=f"one and .*{name} differ in objective.{name} .*name models of one task"):
            merge.run([tmp_path / "one", tmp_path / name], tmp_path / "mean")
    merged = merge.run([tmp_path / "one", tmp_path / "temperature"], tmp_path / "mean")
    objective = merged.settings["tasks"]["task"]["objective"]
    assert (objective["temperature"], objective["threshold"], objective["precision"]) == (None, None, 0.9)
