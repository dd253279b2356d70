"""Words with tags: columns, pieces, windows, and errors in files."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.tagged import Tagged
from bertjax.errors import UserError

CONLL = """-DOCSTART- -X- O O

ann NNP I-NP B-PER
li NNP I-NP I-PER
ran VBD I-VP O

-DOCSTART- -X- O O
to TO I-PP O
oslo NNP I-NP B-LOC
"""
CLASSES = ("B-LOC", "B-PER", "I-PER", "O")


def write(folder, text, name="train.txt"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def encoded(tokenizer, words, seq_len, tags=(), classes=CLASSES, **choices):
    record = {"words": list(words), WHERE: "f:1"} | ({"tags": list(tags)} if tags else {})
    return Tagged(**choices).encode([record], tokenizer, seq_len, classes)


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_columns_and_sentences(tmp_path, name):
    path = write(tmp_path, CONLL, name)
    records = Tagged().read(path)
    assert records == [
        {"words": ["ann", "li", "ran"], "tags": ["B-PER", "I-PER", "O"], WHERE: f"{path}:3"},
        {"words": ["to", "oslo"], "tags": ["O", "B-LOC"], WHERE: f"{path}:8"},
    ]
    assert Tagged().class_counts(records) == {"B-PER": 1, "I-PER": 1, "B-LOC": 1, "O": 2}
    assert [record["tags"] for record in Tagged(tag=1).read(path)] == [["NNP", "NNP", "VBD"], ["TO", "NNP"]]
    assert Tagged(word=1, tag=0).read(path)[1]["words"] == ["TO", "NNP"]


def test_lines_of_comments_are_left_out(tmp_path):
    path = write(tmp_path, "## 1\tOslo is a city\nOslo\tB-LOC\n# \tO\n\n## 2\tx\nx\tO\n")
    records = Tagged(comment="##").read(path)
    assert [(record["words"], record["tags"]) for record in records] == [
        (["Oslo", "#"], ["B-LOC", "O"]),
        (["x"], ["O"]),
    ]
    with pytest.raises(UserError, match="examples.comment=## has no effect on .*conllu"):
        Tagged(comment="##").read(write(tmp_path, "", "a.conllu"))


def test_with_tabs_a_word_may_have_a_space_and_line_ends_may_be_crlf(tmp_path):
    path = write(tmp_path, "\ufeffnew york\tB-LOC\r\n\r\n \tO\r\n")
    assert [record["words"] for record in Tagged().read(path)] == [["new york"], [" "]]


def test_the_first_piece_of_a_word_has_its_tag(spelling):
    examples = encoded(spelling, ["ann", "li", "\u0007", "x"], 16, ["B-PER", "I-PER", "O", "B-LOC"])
    ragged = examples.ragged
    pieces = [spelling.piece(token) for token in ragged.tokens]
    assert pieces == ["[CLS]", "a", "##n", "##n", "l", "##i", "[UNK]", "x", "[SEP]"]
    assert ragged.token_labels["tag"].tolist() == [-1, 1, -1, -1, 2, -1, 3, 0, -1]
    assert ragged.token_labels["word"].tolist() == [-1, 0, -1, -1, 1, -1, 2, 3, -1]
    assert ragged.special.tolist() == [True, *[False] * 5, True, False, True]
    assert examples.notes == {}


@pytest.mark.parametrize("record", [{"words": ["ann", "li"]}, {"text": " ann  li\n"}])
def test_words_without_tags_can_be_predicted(spelling, record):
    ragged = Tagged().encode([record], spelling, 16, CLASSES).ragged
    assert ragged.token_labels["tag"].tolist() == [-1, -2, -1, -1, -2, -1, -1]
    assert ragged.token_labels["word"].tolist() == [-1, 0, -1, -1, 1, -1, -1]


def test_further_texts_have_words_without_tags(tmp_path):
    path, more = write(tmp_path, "ann B-PER\n"), write(tmp_path, "ann  li\n\n x \n", "more.txt")
    format = Tagged(train=path, heldout=path, unlabeled=more)
    further = format.further_train()
    assert [record["text"] for record in further] == ["ann  li", "x"]
    assert not any("tags" in record for record in further)
    assert format.class_counts(format.read(path) + further) == {"B-PER": 1}
    for other in ("more.conllu.gz", "more.jsonl"):
        with pytest.raises(UserError, match=f"unlabeled={other} is not plain text; give a file with one text per line"):
            Tagged(unlabeled=other).further_train()


@settings(deadline=None)
@given(
    words=st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=40),
    seq_len=st.integers(3, 24),
    stride=st.integers(1, 24),
)
def test_every_word_has_a_tag_in_one_window(spelling, words, seq_len, stride):
    tags = [CLASSES[len(word) % 4] for word in words]
    examples = encoded(spelling, words, seq_len, tags, stride=stride)
    ragged = examples.ragged
    assert ragged.lengths.max() <= seq_len and set(examples.record_of) == {0}
    at = np.flatnonzero(ragged.token_labels["word"] >= 0)
    assert sorted(ragged.token_labels["word"][at]) == list(range(len(words)))
    for place in at:
        word = words[ragged.token_labels["word"][place]]
        assert spelling.piece(ragged.tokens[place]) == word[0]
        assert CLASSES[ragged.token_labels["tag"][place]] == CLASSES[len(word) % 4]
    assert np.all((ragged.token_labels["tag"] >= 0) == (ragged.token_labels["word"] >= 0))
    assert examples.notes == ({f"read in windows of {seq_len} tokens": 1} if len(ragged.ids) > 1 else {})


@pytest.mark.parametrize(
    "text, choices, message",
    [
        (
            "a B-X\nb\nc O\n",
            {"tag": 1},
            r"train.txt:2 has 1 columns between spaces, and most lines have 2; .*, or set ",
        ),
        ("a O\n", {"word": -3}, r"train.txt has 2 columns, but examples.word=-3; correct either of them$"),
        ("\n-DOCSTART- O\n\n", {}, r"train.txt has no sentences; give a file with a word and its tag in each line$"),
        ("a O\n\udcff O\n", {}, r"train.txt:2 is not UTF-8: its byte \d is 0xff; convert the file: iconv -f"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, choices, message):
    path = tmp_path / "train.txt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=message):
        Tagged(**choices).read(str(path))


def test_bad_sentences_are_left_out_and_counted(tmp_path, capsys):
    path = write(tmp_path, "a O\nb\nc O\n\nd O\n\ne\n")
    with pytest.raises(UserError, match="train.txt:2 has 1 columns .*, or set examples.on_bad_record=skip$"):
        Tagged(tag=1).read(path)
    assert Tagged(tag=1, on_bad_record="skip").read(path) == [{"words": ["d"], "tags": ["O"], WHERE: f"{path}:5"}]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" has ")[0] for line in lines[:2]] == [f"skipped: {path}:2", f"skipped: {path}:7"]
    assert lines[2:] == [f"{path}: 2 of 3 records skipped (examples.on_bad_record=skip)"]


def test_a_tag_that_the_training_file_lacks_is_refused(tmp_path, spelling):
    path = write(tmp_path, CONLL)
    with pytest.raises(
        UserError,
        match=r"train.txt:8 starts a sentence whose word 2 \('oslo'\) has the tag 'B-LOC', which the training file "
        r"lacks \(B-PER, I-PER, O\); correct it",
    ):
        Tagged().encode(Tagged().read(path), spelling, 16, ("B-PER", "I-PER", "O"))


def test_bad_settings_are_refused(spelling):
    with pytest.raises(UserError, match="examples.stride=0 must be at least 1 token"):
        Tagged(stride=0)
    with pytest.raises(UserError, match="examples.train or examples.heldout is empty; name a file of words and tags"):
        Tagged().read("")
    with pytest.raises(UserError, match="an example of 2 tokens has no room for a word; raise stages.0.seq_len"):
        encoded(spelling, ["a"], 2, ["O"])
