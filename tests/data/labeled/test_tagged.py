"""Words with tags: columns, pieces, windows, and errors in files."""

import gzip
import re
from pathlib import Path

import pytest

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.tagged import Tagged
from tests.labeled_files import file_of

CONLL = """-DOCSTART- -X- O O

ann NNP I-NP B-PER
li NNP I-NP I-PER
ran VBD I-VP O

-DOCSTART- -X- O O
to TO I-PP O
oslo NNP I-NP B-LOC
"""
CLASSES = ("B-LOC", "B-PER", "I-PER", "O")


def test_columns_and_sentences(tmp_path):
    path = file_of(tmp_path, "train.txt.gz", CONLL)
    records = Tagged().read(path)
    assert records == [
        {"words": ["ann", "li", "ran"], "tags": ["B-PER", "I-PER", "O"], WHERE: f"{path}:3"},
        {"words": ["to", "oslo"], "tags": ["O", "B-LOC"], WHERE: f"{path}:8"},
    ]
    assert Tagged().class_counts(records) == {"B-PER": 1, "I-PER": 1, "B-LOC": 1, "O": 2}
    assert [record["tags"] for record in Tagged(tag=1).read(path)] == [["NNP", "NNP", "VBD"], ["TO", "NNP"]]
    assert Tagged(word=1, tag=0).read(path)[1]["words"] == ["TO", "NNP"]
    path = file_of(tmp_path, "train.txt", "## 1\tOslo is a city\nOslo\tB-LOC\n# \tO\n\n## 2\tx\nx\tO\n")
    records = Tagged(comment="##").read(path)
    assert [(record["words"], record["tags"]) for record in records] == [
        (["Oslo", "#"], ["B-LOC", "O"]),
        (["x"], ["O"]),
    ]
    # A model that learned from columns is scored on JSON, and one of CoNLL-U on columns.
    path = file_of(tmp_path, "a.jsonl", '{"tokens": ["ann"], "tags": ["O"]}\n')
    assert Tagged(train="train.txt", word=1, tag=3).read(path)[0]["words"] == ["ann"]
    assert Tagged(train="train.conllu", conllu="xpos").read(file_of(tmp_path, "train.txt", "ann O\n"))[0]["tags"] == [
        "O"
    ]


@pytest.mark.parametrize(
    "words, units, is_spaced",
    [
        (["ann", "li", "."], "", [True, True, True]),
        (["ann", "\u6771", "\u4eac", "li", "\u90fd"], "", [True, True, False, True, True]),
        (["\u0e01\u0e34\u0e19", "\u0e02\u0e49\u0e32\u0e27"], "words", [True, False]),
        (["\u4e2d\u56fd", "\uff0c", "\u6771", ",", "\uc800"], "words", [True, False, False, True, True]),
        (["\uc800", "\ub294"], "words", [True, True]),
        (["\uc800", "\ub294", " ", "\uae40"], "characters_and_spaces", [True, False, False, True]),
        (["a", "b"], "characters", [True, False]),
    ],
)
def test_words_are_joined_as_in_their_text(words, units, is_spaced):
    assert Tagged(units=units)._follows_space(words) == is_spaced


@pytest.mark.parametrize(
    "words, units, split",
    [
        (["ann", "li", "oslo.", "rome,", "."], "words", ["ab", "c\u6771\u4eac."]),
        (["ann", "U.S.", ".", "li"], "words_and_punctuation", ["ab", "c\u6771\u4eac", "."]),
        (["a", "l", "i", "n", "2008"], "characters", list("abc\u6771\u4eac.")),
        (["a", " ", "l", "i"], "characters_and_spaces", list("ab c\u6771\u4eac.")),
        ([], "words", ["ab", "c\u6771\u4eac."]),
    ],
)
def test_what_has_a_tag_in_the_training_file_has_one_in_a_text(words, units, split):
    format = Tagged().resolved([{"words": words, "tags": ["O"] * len(words)}] if words else [{"text": "x y"}])
    text = " ab c\u6771\u4eac. "
    assert format.units == units and [text[start:end] for start, end in format.spans_in(text)] == split
    assert format.resolved([{"words": ["other"]}]) == format, "a setting stays"


def test_punctuation_around_words_is_split_off():
    words = '" The U.S. ( e.g. J. Smith ) , rock-and-roll ... \u0928\u092e\u0938\u094d\u0924\u0947 \u0964'.split()
    text = '"The U.S. (e.g. J. Smith), rock-and-roll... \u0928\u092e\u0938\u094d\u0924\u0947\u0964'
    for format, more in ((Tagged(units="words_and_punctuation"), []), (Tagged(), ["\u6771", "\u4eac"])):
        own = text + "".join(more)
        assert [own[start:end] for start, end in format.spans_in(own)] == words + more


def read_to_predict(tmp_path, text, name="a.txt", **choices):
    records = Tagged(**choices).read_unlabeled(file_of(tmp_path, name, text), CLASSES)
    return None if records is None else [record["words"] for record in records]


@pytest.mark.parametrize(
    "text, words",
    [
        ("ann B-PER\nli O\n\nto O\noslo B-LOC\n", [["ann", "li"], ["to", "oslo"]]),
        ("ann B-PER\nli O\n", [["ann", "li"]]),
        ("ann NNP\nli NNP\nran VB\n\nto TO\noslo NNP\n", [["ann", "li", "ran"], ["to", "oslo"]]),
        ("ann\nli\n\nto\noslo\n", [["ann", "li"], ["to", "oslo"]]),
        (
            "\u4e2d\u56fd\n\u6771\n\n\u0e01\u0e34\u0e19\n\u90fd\n",
            [["\u4e2d\u56fd", "\u6771"], ["\u0e01\u0e34\u0e19", "\u90fd"]],
        ),
        (2 * f"{7 * chr(0x4E2D)}\u3002\n{5 * chr(0x56FD)}\n\n", None),
        ('{"text": "ann li", "words": 2}\n', None),
        ('{"tokens": ["ann", "li"]}\n', [["ann", "li"]]),
        ('{"words": ["ann"], "tags": ["O"]}\n', [["ann"]]),
        ("ann went home\nli ran\n", None),
        ("ann went\nli ran\n", None),
        ("ann ran home\n\nli ran off\n", None),
        ("ann\n", None),
    ],
)
def test_files_to_predict(tmp_path, text, words):
    assert read_to_predict(tmp_path, text) == words


def test_tables_of_texts_are_no_words(tmp_path):
    for name, text in (
        ("a.csv", "text\nann li\nto oslo\n"),
        ("a.tsv", "id\ttext\n1\tann\n\n2\toslo\n3\tli\n4\tto\n"),
        ("a.jsonl", '{"text": "ann li"}\n'),
        ("a.json", '[{"text": "ann li"}]\n'),
    ):
        assert read_to_predict(tmp_path, text, name) is None
        assert Tagged().with_answers(file_of(tmp_path, name, text), iter(()), CLASSES) is None


def answered(tmp_path, text, tags, name="a.txt", classes=CLASSES, **choices) -> list[str]:
    path = file_of(tmp_path, name, text)
    return list(Tagged(**choices).with_answers(path, iter(tags), classes))


def test_answers_are_the_last_column(tmp_path):
    text = "-DOCSTART- O\n\nann B-PER\nli O\n\n# c 1\nto O"
    expected = ["-DOCSTART- O", "", "ann B-PER O", "li O B-PER", "", "# c 1", "to O B-LOC"]
    assert answered(tmp_path, text, ["O", "B-PER", "B-LOC"]) == expected
    tabs = answered(tmp_path, text.replace(" ", "\t"), ["O", "B-PER", "B-LOC"])
    assert tabs == [line.replace(" ", "\t") for line in expected]
    path = file_of(tmp_path, "train.txt", "ann went home\nli ran\n")
    assert Tagged().with_answers(path, iter(()), CLASSES) is None, "lines of text have no columns"


@pytest.mark.parametrize(
    "setting, classes, place, expected",
    [
        ("upos", ("NOUN", "VERB"), 3, ["NOUN", "VERB"]),
        ("xpos", ("NOUN", "VERB"), 4, ["NOUN", "VERB"]),
        ("feats.Case", ("_", "Nom"), 5, ["Number=Sing", "Case=Nom|Number=Sing"]),
        ("upos", ("B-PER", "O"), 9, ["NER=B-PER", "NER=O|SpaceAfter=No"]),
    ],
)
def test_answers_in_conllu(tmp_path, setting, classes, place, expected):
    words = [
        "# text = ann li",
        "1-2\tannli" + "\t_" * 8,
        "1\tann\t_\tX\tX\tCase=Acc|Number=Sing\t_\t_\t_\t_",
        "2\tli\t_\tX\tX\tNumber=Sing\t_\t_\t_\tSpaceAfter=No",
        "",
    ]
    lines = answered(tmp_path, "\n".join(words), classes, "a.conllu", classes, conllu=setting)
    changed = [line.split("\t") for line in words]
    for row, value in zip((2, 3), expected):
        changed[row][place] = value
    assert lines == ["\t".join(row) for row in changed[: len(lines)]] and len(lines) == 4


REAL = Path(__file__).parents[3].parent / "shared" / "data" / "tasks" / "ud"

# A comment, a multiword token, an empty node, and a word with a space, which the format allows.
SENTENCES = """\
# sent_id = 1
# text = I don't.
1	I	I	PRON	PRP	Case=Nom|Number=Sing	3	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	SpaceAfter=No
2	do	do	AUX	VBP	Mood=Ind	0	root	_	_
3	n't	not	PART	RB	_	2	advmod	_	_
3.1	know	know	VERB	VB	VerbForm=Inf	_	_	2:ccomp	_
4	.	.	PUNCT	_	_	2	punct	_	_

# newdoc
1	New  York	New York	PROPN	NNP	Number=Sing	0	root	_	_
"""


@pytest.mark.parametrize(
    "field, tags",
    [
        ("upos", [["PRON", "AUX", "PART", "PUNCT"], ["PROPN"]]),
        ("xpos", [["PRP", "VBP", "RB", "_"], ["NNP"]]),
        ("feats.Case", [["Nom", "_", "_", "_"], ["_"]]),
    ],
)
def test_words_and_tags(tmp_path, field, tags):
    path = file_of(tmp_path, "train.conllu.gz", SENTENCES)
    records = Tagged(conllu=field).read(path)
    assert [record["words"] for record in records] == [["I", "do", "n't", "."], ["New  York"]]
    assert [record["tags"] for record in records] == tags
    assert [record[WHERE] for record in records] == [f"{path}:1", f"{path}:10"]


@pytest.mark.parametrize("name", ["en_ewt.dev", "en_ewt.train", "ko_gsd.dev", "ko_gsd.train"])
def test_real_treebanks(name):
    """The words and tags of a treebank, against a plain reading of its lines."""
    path = REAL / f"{name}.conllu.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    lines = [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().split("\n")]
    words = [columns for columns in lines if columns[0].isdecimal()]
    records = Tagged().read(str(path))
    assert sum(columns[0] == "1" for columns in words) == len(records)
    assert [word for record in records for word in record["words"]] == [columns[1] for columns in words]
    assert [tag for record in records for tag in record["tags"]] == [columns[3] for columns in words]
    feature = "Case" if name.startswith("en") else "NumType"
    values = [re.search(rf"(?:^|\|){feature}=([^|]*)", columns[5]) for columns in words]
    tags = [tag for record in Tagged(conllu=f"feats.{feature}").read(str(path)) for tag in record["tags"]]
    assert any(values) and tags == [value[1] if value else "_" for value in values]
