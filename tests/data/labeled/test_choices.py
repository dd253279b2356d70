"""Multiple choice: one example per choice, all choices of a record in one row, and errors in files."""

import json

import pytest

from bertjax.data.labeled.choices import Choices
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.plan import Spec
from bertjax.runtime.errors import UserError
from tests import labeled_files

T = 64
ENDINGS = ("ending0", "ending1", "ending2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    return [labeled_files.choices(folder / f"{name}.jsonl", 40, seed) for seed, name in enumerate(("train", "dev"))]


def source(files, store, **fields) -> LabeledSource:
    train, heldout = map(str, files)
    return LabeledSource(Choices(train=train, heldout=heldout, **fields), store.tokenizer)


def decoded(examples, tokenizer, index: int) -> tuple[str, str]:
    ragged = examples.ragged
    span = slice(ragged.offsets[index], ragged.offsets[index + 1])
    tokens, segments = ragged.tokens[span], ragged.segments[span]
    return tuple(tokenizer.decode(tokens[segments == side].tolist()) for side in (0, 1))


def test_a_record_is_an_example_for_each_choice(files, store):
    labeled = source(files, store)
    examples = labeled.examples("train", 3 * T, labeled.classes)
    assert labeled.classes == ("0", "1", "2") and examples.group == 3 and len(examples) == 120
    for number, record in enumerate(labeled.train[:5]):
        for choice, text in enumerate(record["choices"]):
            index = 3 * number + choice
            assert decoded(examples, store.tokenizer, index) == (record["context"], text)
            assert examples.record_of[index] == number
            assert examples.ragged.labels["choice"][index] == record["label"]


def test_choices_in_columns_with_a_question_before_each(files, store, tmp_path):
    lines = ["\t".join(["id", "sent1", "sent2", *ENDINGS, "label"])]
    for number, record in enumerate(map(json.loads, files[0].read_text().splitlines())):
        lines.append("\t".join([str(number), record["context"], "cab", *record["choices"], str(record["label"])]))
    path = tmp_path / "swag.tsv"
    path.write_text("\n".join(lines))
    columns = source([path, path], store, context="sent1", question="sent2", choices=ENDINGS)
    examples = columns.examples("train", 3 * T, columns.classes)
    assert columns.format.inputs == ("sent1", "sent2", *ENDINGS)
    assert decoded(examples, store.tokenizer, 4) == (columns.train[1]["sent1"], "cab " + columns.train[1]["ending1"])
    of_list = source(files, store)
    assert columns.unigram_counts("train").tolist() == of_list.unigram_counts("train").tolist()
    labels = [form.examples("train", T, form.classes).ragged.labels["choice"].tolist() for form in (columns, of_list)]
    assert labels[0] == labels[1]


def test_a_choice_that_is_never_correct_is_counted_as_a_class(files, store, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"context": "abc", "choices": ["a"] * 12, "label": 3}) + "\n")
    labeled = source([path, path], store)
    assert len(labeled.classes) == 12 and labeled.unigram_counts("train").sum() == 1


def test_the_choices_of_a_record_share_a_row(files, store):
    labeled = source(files, store)
    plan = labeled.plan(Spec("train", labeled.format, 2 * T, seed=0, row_examples=7), labeled.classes)
    groups = plan.rows_RN.reshape(len(plan.rows_RN), -1, 3)
    assert groups.shape[1] == 2 and sorted(plan.rows_RN[plan.rows_RN >= 0]) == list(range(120))
    for first, second, third in groups[groups[..., 0] >= 0]:
        assert first % 3 == 0 and (second, third) == (first + 1, first + 2)
    lengths = plan.examples.lengths()
    assert lengths.max() <= 2 * T // 3 and max(lengths[row[row >= 0]].sum() for row in plan.rows_RN) <= 2 * T


def test_a_row_that_is_too_short_for_all_choices_is_refused(files, store):
    labeled = source(files, store)
    with pytest.raises(UserError, match="a row of 14 tokens leaves 4 for each of 3 choices; raise stages.0.seq_len"):
        labeled.examples("train", 14, labeled.classes)


GOOD = {"context": "abc", "choices": ["a", "b", "c"], "label": 1}


@pytest.mark.parametrize(
    "record, complaint",
    [
        (GOOD | {"label": 3}, "dev.jsonl:2 has the label 3; write the number of the correct choice, from 0 to 2"),
        (GOOD | {"label": -1}, "dev.jsonl:2 has the label -1"),
        (GOOD | {"label": "b"}, "dev.jsonl:2 has the label 'b'"),
        (GOOD | {"label": None}, "dev.jsonl:2 has the label None"),
        (GOOD | {"choices": ["a", "b"]}, "dev.jsonl:2 has 2 choices, others have 3; give all records the same number"),
        (GOOD | {"choices": ["a"]}, "dev.jsonl:2 has 1 choice; set examples.choices to two or more columns"),
        (GOOD | {"choices": "abc"}, "dev.jsonl:2 has 1 choice"),
        (GOOD | {"choices": ["a", " ", "c"]}, "dev.jsonl:2 has no text in 'choices'"),
        (GOOD | {"choices": ["a", 4, "c"]}, "dev.jsonl:2 has no text in 'choices'"),
        (GOOD | {"context": ""}, "dev.jsonl:2 has no text in 'context'"),
        ({"context": "abc", "label": 1}, "dev.jsonl:2 has no field 'choices'"),
    ],
)
def test_bad_records_are_refused(files, store, tmp_path, record, complaint):
    broken = tmp_path / "dev.jsonl"
    broken.write_text(json.dumps(GOOD) + "\n" + json.dumps(record) + "\n")
    labeled = source((files[0], broken), store)
    with pytest.raises(UserError, match=complaint):
        labeled.examples("heldout", T, labeled.classes)


def test_files_with_different_numbers_of_choices_are_refused(files, store, tmp_path):
    other = tmp_path / "dev.jsonl"
    other.write_text(json.dumps(GOOD | {"choices": ["a", "b"]}) + "\n")
    labeled = source((files[0], other), store)
    with pytest.raises(UserError, match="dev.jsonl:1 has 2 choices, others have 3"):
        labeled.examples("heldout", T, labeled.classes)


@pytest.mark.parametrize("fields", [{"context": ""}, {"choices": ()}, {"choices": ("a", "")}, {"label": ""}])
def test_empty_column_names_are_refused(fields):
    with pytest.raises(UserError, match="must each name a column"):
        Choices(**fields)


def test_bad_records_are_left_out_and_counted_if_configured(store, tmp_path, capsys):
    """The number of choices is that of most records, not that of the first one."""
    path = tmp_path / "train.jsonl"
    bad = [GOOD | {"choices": ["a", "b"]}, GOOD | {"label": 7}, {"context": "abc"}, GOOD | {"context": " "}]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*bad, GOOD, GOOD]))
    labeled = source((path, path), store, on_bad_record="skip")
    assert [record["context"] for record in labeled.train] == ["abc"] * 2 and labeled.classes == ("0", "1", "2")
    assert "4 of 6 records skipped" in capsys.readouterr().err


def test_the_number_of_a_choice_may_be_written_as_pandas_writes_it(tmp_path, store):
    """A column with a missing value holds floats: 1.0."""
    path = tmp_path / "a.csv"
    path.write_text("context,a,b,label\nabc,cab,bad,1.0\nabc,cab,bad, 0\n")
    labeled = source((path, path), store, choices=("a", "b"))
    choices = labeled.examples("train", 64, labeled.classes).ragged.labels["choice"]
    assert labeled.classes == ("0", "1") and choices.tolist() == [1, 1, 0, 0]
