"""CoNLL-U: words and tags, what is left out, and errors with their place."""

import gzip
import re
from pathlib import Path

import pytest

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.tagged import Tagged
from bertjax.runtime.errors import UserError

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
BLANK = "\t".join("_" * 8)


def write(folder, text, name="train.conllu"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["train.conllu", "train.conllu.gz"])
@pytest.mark.parametrize(
    "field, tags",
    [
        ("upos", [["PRON", "AUX", "PART", "PUNCT"], ["PROPN"]]),
        ("xpos", [["PRP", "VBP", "RB", "_"], ["NNP"]]),
        ("feats.Case", [["Nom", "_", "_", "_"], ["_"]]),
        ("feats.Number", [["Sing", "_", "_", "_"], ["Sing"]]),
    ],
)
def test_words_and_tags(tmp_path, name, field, tags):
    path = write(tmp_path, SENTENCES, name)
    records = Tagged(conllu=field).read(path)
    assert [record["words"] for record in records] == [["I", "do", "n't", "."], ["New  York"]]
    assert [record["tags"] for record in records] == tags
    assert [record[WHERE] for record in records] == [f"{path}:1", f"{path}:10"]


@pytest.mark.parametrize(
    "text, choices, message",
    [
        (SENTENCES.replace("AUX\t", ""), {}, "train.conllu:5 has 9 columns between tabs, not 10; correct the line"),
        (SENTENCES + "1 a b\n", {}, "train.conllu:12 has 1 columns between tabs, not 10; correct the line"),
        (f"x\ta\t{BLANK}\n", {}, r"train.conllu:1 is not CoNLL-U \('x' is not a valid ID.*\); correct the line"),
        (f"3-1\ta\t{BLANK}\n", {}, r"train.conllu:1 is not CoNLL-U \('3-1' is not a valid ID.*\); correct the line"),
        (f"_\ta\t{BLANK}\n", {}, "train.conllu:1 has no number; correct the line"),
        (f"1\t\t{BLANK}\n", {}, "train.conllu:1 has no word; correct the line"),
        (
            f"1\t\udcff\t{BLANK}\n",
            {},
            r"train.conllu:1 is not UTF-8: its byte \d is 0xff; convert the file: iconv -f",
        ),
        ("# text = a\n\n", {}, "train.conllu has no sentences that can be used; give a file in the format of CoNLL-U"),
        (
            SENTENCES,
            {"conllu": "feats.Tense"},
            "train.conllu has no word with examples.conllu=feats.Tense; choose upos",
        ),
        (SENTENCES, {"tag": 3}, "examples.tag=3 has no effect on .*train.conllu, a file of CoNLL-U; remove it"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, choices, message):
    path = tmp_path / "train.conllu"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=message):
        Tagged(train=str(path), **choices).read(str(path))


@pytest.mark.parametrize("field", ["feats.", "deprel", "Case", ""])
def test_a_field_that_is_no_tag_is_refused(field):
    with pytest.raises(UserError, match=f"examples.conllu='{re.escape(field)}' is not a tag of CoNLL-U; choose upos,"):
        Tagged(conllu=field)


def test_the_setting_is_for_conllu_files_only(tmp_path):
    with pytest.raises(
        UserError, match="examples.conllu=xpos has no effect on .*a.txt, which is not in the format of CoNLL-U"
    ):
        Tagged(train=str(tmp_path / "a.txt"), conllu="xpos").read(write(tmp_path, "a O\n", "a.txt"))


def test_bad_sentences_are_left_out_and_counted(tmp_path, capsys):
    path = write(tmp_path, SENTENCES.replace("AUX\t", ""))
    assert [record["words"] for record in Tagged(on_bad_record="skip").read(path)] == [["New  York"]]
    assert f"{path}: 1 of 2 records skipped (examples.on_bad_record=skip)" in capsys.readouterr().err


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
