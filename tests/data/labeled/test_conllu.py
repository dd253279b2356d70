"""CoNLL-U: words and tags, what is left out, and errors with their place."""

import gzip
import re
from pathlib import Path

import pytest

from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.tagged import Tagged

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
    path = str(tmp_path / "train.conllu.gz")
    Path(path).write_bytes(gzip.compress(SENTENCES.encode()))
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
