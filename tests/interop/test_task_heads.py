"""Fine-tuned heads in the files of transformers, without transformers: round trips, labels, and errors."""

import functools
import json

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.cli import convert
from bertjax.config import export
from bertjax.inference.embed import Embed
from bertjax.inference.predictor import FineTuned, Predictor
from bertjax.interop import huggingface, onnx
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from tests.interop import models


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def change(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize("term", models.TASKS)
def test_every_file_and_use_has_the_length_of_the_training(tokens, tmp_path, term):
    """The encoder has 20 positions, and the last stage has rows of 12 tokens."""
    model = models.fine_tuned(term, tokens)
    group, [task] = 2 if term == "multiple_choice" else 1, model.settings["tasks"].values()
    task["examples"] |= {"stride": 2, "max_question": 2} if term == "span" else {}
    first, last = (model.settings["stages"][0] | {"seq_len": length * group} for length in (20, 12))
    model.settings["stages"] = [first, last]
    export.write(tmp_path / "ours", model)
    huggingface.write(tmp_path / "theirs", model)
    assert max(batch["tokens_BT"].shape[1] for _, batch in onnx.rows(model)) == 12, "the check of an ONNX file"
    limit = json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())["model_max_length"]
    assert (limit, onnx.description_of(model).max_tokens) == (12, 12)
    for own in (model, export.read(tmp_path / "ours"), huggingface.read(tmp_path / "theirs")[0]):
        assert own.lengths == (12 * group, 12)
        assert Embed(own).seq_len == 12 and (group > 1 or FineTuned(own).seq_len == 12)
        assert own.settings["stages"][-1]["seq_len"] == 12 * group, "the rows of an evaluation"


@pytest.mark.parametrize("kind", models.STEMS)
def test_an_encoder_alone_has_neither_head_nor_pooler(tokens, tmp_path, kind):
    original = models.fine_tuned("classification", tokens, kind)
    huggingface.write(tmp_path / "whole", original)
    huggingface.write(tmp_path / "encoder", huggingface.encoder_alone(original))
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    stem = models.STEMS["eurobert" if kind == "neobert" else kind]  # a class without code of the authors
    assert config["architectures"] == [f"{stem}Model"] and "id2label" not in config
    from_whole, _ = huggingface.read(tmp_path / "whole", encoder_only=True)
    from_encoder, _ = huggingface.read(tmp_path / "encoder")
    assert from_whole.params.keys() == {"encoder"} and "pooler" not in from_whole.params["encoder"]
    assert [task["objective"]["kind"] for task in from_whole.settings["tasks"].values()] == ["mlm"]
    expected = flatten_dict(from_encoder.params, sep="/")
    for path, leaf in flatten_dict(from_whole.params, sep="/").items():
        np.testing.assert_array_equal(leaf, expected[path], path)


@pytest.mark.parametrize(
    "term, setting, complaint",
    [
        ("classification", {"pooling": "late"}, "objective.pooling='late', .*; fine-tune with objective.pooling=cls"),
        ("tagging", {"kind": "mylab:Tags"}, "trained by objective.kind='mylab:Tags', and transformers has"),
    ],
)
def test_a_head_that_computes_something_else_is_refused(tokens, tmp_path, term, setting, complaint):
    model = models.fine_tuned(term, tokens)
    model.settings["tasks"][term]["objective"].update(setting)
    with pytest.raises(UserError, match=f"the head {term} .*{complaint}.*--encoder-only"):
        huggingface.write(tmp_path / "out", model)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"id2label": {"0": "a", "1": "b"}}, "id2label=.'a', 'b'.; the head has 3 logits"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label=.'a', 'b', 'a'.; the head has 3 logits"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "number the labels from 0 without a gap"),
        ({"id2label": {"0": "a", "1": None, "2": ""}}, "give each label a name"),
        ({"id2label": {"x": "a"}}, "cannot be read"),
        ({"problem_type": "ranking"}, "problem_type='ranking'; .*--encoder-only"),
        (
            {
                "num_labels": 1,
                "id2label": None,
                "problem_type": None,
                "sentence_transformers": {"activation_fn": "Tanh"},
            },
            "activation_fn='Tanh'; bertjax has",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused(tokens, tmp_path, settings, complaint):
    term = "regression" if "num_labels" in settings else "classification"
    huggingface.write(tmp_path, models.fine_tuned(term, tokens))
    change(tmp_path, **settings)
    with pytest.raises(UserError, match=complaint) as caught:
        huggingface.read(tmp_path)
    assert "\n" not in str(caught.value)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    "settings, activation",
    [
        ({"problem_type": "regression"}, "identity"),
        ({}, "sigmoid"),
        ({"problem_type": "single_label_classification"}, "sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.1.2"}}, "identity"),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
    ],
)
def test_a_cross_encoder_of_one_label_keeps_its_activation(tokens, tmp_path, settings, activation):
    """A pipeline and a CrossEncoder apply a sigmoid to one logit, unless the folder says otherwise."""
    original = models.fine_tuned("regression", tokens)
    huggingface.write(tmp_path, original)
    change(tmp_path, **{"problem_type": None, "sentence_transformers": None} | settings)
    model, _ = huggingface.read(tmp_path)
    texts = ["abd ace", "bbe"]
    logits, numbers = (
        np.array([answer["prediction"] for answer in Predictor(each).predict(texts)]) for each in (original, model)
    )
    expected = logits if activation == "identity" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(numbers, expected, atol=2e-6)
    huggingface.write(tmp_path / "back", model)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config.get("problem_type") == ("regression" if activation == "identity" else None)
    assert huggingface.read(tmp_path / "back")[0].settings == model.settings


def test_the_last_token_as_the_summary_of_an_xlnet_is_refused(tokens, tmp_path):
    huggingface.write(tmp_path, models.fine_tuned("classification", tokens, "xlnet"))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["summary_type"] == "first"
    del config["summary_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="summary_type='last'; bertjax's head computes 'first' only; add --encoder"):
        huggingface.read(tmp_path)


def test_a_checkpoint_without_the_head_of_its_class_is_refused(tokens, tmp_path):
    huggingface.write(tmp_path, huggingface.encoder_alone(models.fine_tuned("classification", tokens)))
    change(tmp_path, architectures=["BertForSequenceClassification"])
    with pytest.raises(UserError, match="lacks classifier.bias, the head of its class"):
        huggingface.read(tmp_path)


def test_the_command_converts_both_ways_and_names_the_next_step(tokens, tmp_path, capsys):
    original = models.fine_tuned("classification", tokens)
    export.write(tmp_path / "ours", original)
    for source, target, step in (
        ("ours", "theirs", f"{tmp_path / 'theirs' / 'README.md'} has the code"),
        ("theirs", "back", f"-m bertjax predict {tmp_path / 'back'} --file=RECORDS.jsonl"),
    ):
        flags = [f"--from={tmp_path / source}", f"--to={tmp_path / target}"]
        assert command_line.exit_code_of(functools.partial(convert.main, flags)) == 0
        assert step in capsys.readouterr().out
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert 'pipeline_tag: "text-classification"\ntags:' in card
    assert 'pipeline("text-classification", model="FOLDER")' in card
    there, back = (tmp_path / folder / "model.safetensors" for folder in ("ours", "back"))
    assert there.read_bytes() == back.read_bytes()
