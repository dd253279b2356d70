"""The benchmark of MiniBERT: the page shows the committed lines, and a method and its baseline train as often."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import minibert
from benchmarks.minibert import ROWS, STEPS, Place
from benchmarks.resumable import finished
from bertjax.cli import exit_code_of
from bertjax.data.labeled import conllu
from bertjax.errors import UserError

ROOT = Path(__file__).parents[2]
SENTENCE = "1\t{}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"


def test_the_page_shows_the_committed_lines():
    table = minibert.markdown(finished(minibert.RESULTS))
    assert table in (ROOT / "docs" / "results" / "compression.md").read_text()


def test_the_method_and_its_baseline_differ_in_the_teacher_only():
    place = Place(Path("OUT"), "minibert", 0)
    (ours, then), (theirs, as_well) = (ROWS[name][1](place) for name in ("minibert", "three-layers-twice"))
    assert then == as_well and set(theirs) < set(ours)  # of one place, whose row is in the folders of both
    more = set(ours) - set(theirs)
    assert {flag.split("=")[0].rsplit(".", 1)[1] for flag in more} == {"teacher", "kind", "own_factor", "unlabeled"}
    assert f"--config.stages.0.steps={STEPS}" in ours


def test_the_data_of_both_languages_become_one(tmp_path, monkeypatch):
    monkeypatch.setattr(minibert, "UNLABELED", 2)
    (tmp_path / "ud").mkdir()
    for number, bank in enumerate(minibert.TREEBANKS.values()):
        for split, ending in (("train", "\n"), ("dev", "")):  # the last line of a file may lack its end
            text = SENTENCE.format(f"{split}{number}") + ending
            (tmp_path / "ud" / f"{bank}.{split}.conllu.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("one", "two"):
        text = f"The {name}, it's here. Another of {name}. {'Long ' * 99}."
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text}))
    corpora = [str(tmp_path / f"{name}.jsonl") for name in ("one", "two")]
    minibert.write_data(tmp_path, corpora, tmp_path / "data")
    for split, name in (("train", "train"), ("heldout", "dev")):
        records = conllu.read(str(tmp_path / "data" / f"{split}.conllu"), "upos", pytest.fail)
        assert [record["words"] for record in records] == [[f"{name}0"], [f"{name}1"]]
    lines = (tmp_path / "data" / "unlabeled.txt").read_text().splitlines()
    assert sorted(lines) == [
        "Another of one .",
        "Another of two .",
        "The one , it ' s here .",
        "The two , it ' s here .",
    ]


def test_a_corpus_with_too_few_sentences_is_refused(tmp_path):
    (tmp_path / "ud").mkdir()
    for bank in minibert.TREEBANKS.values():
        for split in ("train", "dev"):
            (tmp_path / "ud" / f"{bank}.{split}.conllu.gz").write_bytes(gzip.compress(SENTENCE.format("a").encode()))
    (tmp_path / "short.txt").write_text("One. Two.")
    with pytest.raises(UserError, match="short.txt has 2 sentences of at most 200 characters, and 8000 are needed"):
        minibert.write_data(tmp_path, [str(tmp_path / "short.txt")], tmp_path / "data")


def test_only_missing_rows_run():
    corpora = ["embedded:en", "embedded:ko"]
    [first, *_] = cells = minibert.missing([], corpora, "minibert,teacher")
    assert first == ("teacher", 0) and len(cells) == 2 * len(minibert.SEEDS)
    done = {"row": "teacher", "seed": 0, "commands": minibert.fingerprint("teacher", 0, corpora)}
    assert minibert.missing([done], corpora, "minibert,teacher") == cells[1:]
    assert minibert.missing([done | {"commands": "of yesterday"}], corpora, "minibert,teacher") == cells
    assert minibert.missing([done], ["novels.jsonl.gz", "embedded:ko"], "minibert,teacher") == cells
    with pytest.raises(UserError, match="--rows has 'mini'; choose among teacher, "):
        minibert.missing([], corpora, "mini")


def test_what_is_missing_is_named(tmp_path, capsys):
    empty = f"--results={tmp_path / 'none.jsonl'}"
    for flags, complaint in (
        ([f"--data={tmp_path}"], f"--data={tmp_path} has no folder ud; see --help"),
        ([], "--data is missing; name the folder with the treebanks, see --help"),
        (["--markdown"], "no cell has finished; run the command without --markdown first"),
    ):
        assert exit_code_of(lambda flags=flags: minibert.main([*flags, empty])) == 2
        assert capsys.readouterr().err == f"error: {complaint}\n"
