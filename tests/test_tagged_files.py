"""Taggers on the files that people have: characters, columns and CoNLL-U are predicted and scored as they are."""

import json

import pytest

import bertjax
from bertjax import cli, evaluate, predict
from bertjax.errors import UserError
from tests import labeled_files, runs
from tests.test_finetune_tokens import finetune

# A Korean sentence by characters, spaces too, as KLUE has it: a name, a particle, a place, a particle and a verb.
NAMES, PLACES, VERBS = ("\uae40\ubbfc\uc218", "\ubc15\uc11c\uc5f0"), ("\ubd80\uc0b0", "\uc804\uc8fc"), ("\uac14\ub2e4",)


def korean(path, sentences: int):
    """Every character with its tag; comments that start with ## before each sentence."""
    lines = []
    for number in range(sentences):
        name, place = NAMES[number % 2], PLACES[number // 2 % 2]
        text = f"{name}\uc640 {place}\uc5d0 {VERBS[0]}"
        tags = ["O"] * len(text)
        for kind, word in (("PS", name), ("LC", place)):
            first = text.index(word)
            tags[first : first + len(word)] = [f"B-{kind}", *[f"I-{kind}"] * (len(word) - 1)]
        lines += [f"## korean_{number:05}\t", *(f"{character}\t{tag}" for character, tag in zip(text, tags)), ""]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """The export of a tagger of Korean characters."""
    folder = tmp_path_factory.mktemp("characters")
    train, dev = korean(folder / "train.tsv", 120), korean(folder / "dev.tsv", 24)
    letters = sorted({line[0] for line in train.read_text().splitlines() if line and not line.startswith("#")} - {" "})
    vocabulary = folder / "letters.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary.write_text("\n".join(pieces) + "\n")
    more = [f"--config.data.tokenizer.model={vocabulary}", "--config.stages.0.epochs=6"]
    assert finetune("ner.py:smoke", "ner", train, dev, folder / "run", *more) == 0
    return folder / "run" / "export"


def test_a_tagger_of_characters_tags_the_characters_of_a_text(characters):
    text = "\uae40\ubbfc\uc218\uc640 \ubd80\uc0b0\uc5d0 \uac14\ub2e4"
    predictor = bertjax.predictor(characters)
    answers = predictor.predict([text, {"words": list(text)}])
    for answer in answers:
        assert answer["words"] == list(text)
        for kind, name in (("PS", "\uae40\ubbfc\uc218"), ("LC", "\ubd80\uc0b0")):
            tagged = [letter for letter, tag in zip(text, answer["prediction"], strict=True) if tag.endswith(kind)]
            assert "".join(tagged) == name
    with pytest.raises(UserError, match="text 1: 'words' is .*, not a list of texts"):
        predictor.predict([{"words": "ann"}])


def test_files_of_a_tagger(tmp_path, capsys):
    """One training: columns are predicted as sentences, answers come back as a column, and other columns are scored."""
    files = labeled_files.conll(tmp_path / "train.txt", 160), labeled_files.conll(tmp_path / "dev.txt", 60, seed=1)
    assert finetune("ner.py:smoke", "ner", *files, tmp_path / "run") == 0
    assert "3 classes, the rarest first: B-LOC" in capsys.readouterr().out
    export, out = tmp_path / "run" / "export", tmp_path / "out.txt"
    call = [str(export), "--platform=cpu"]

    def predicted(*flags) -> int:
        return cli.exit_code_of(lambda: predict.main([*call, *map(str, flags)]))

    assert predicted(f"--file={files[1]}", f"--out={out}") == 0
    assert "dev.txt is read as 60 sentences with a word in each line" in capsys.readouterr().err
    rows = [line.split() for line in out.read_text().splitlines()]
    gold = [line.split() for line in files[1].read_text().splitlines()]
    assert [row[:3] for row in rows] == gold and {len(row) for row in rows} == {0, 4}
    words = [row for row in rows if row]
    assert sum(row[2] == row[3] for row in words) > 0.95 * len(words)
    own = runs.records(tmp_path / "run" / "predictions" / "heldout.jsonl")
    pairs = [pair for record in own for pair in zip(record["words"], record["prediction"])]
    assert sorted((row[0], row[3]) for row in words) == sorted(pairs)
    assert predicted(f"--file={files[1]}", f"--out={tmp_path / 'out.jsonl'}") == 0
    records = runs.records(tmp_path / "out.jsonl")
    assert [tag for record in records for tag in record["prediction"]] == [row[3] for row in words]

    treebank = labeled_files.conllu(tmp_path / "a.conllu", 3)
    assert predicted(f"--file={treebank}") == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(treebank.read_text().splitlines()) and any("\tNER=B-PER" in line for line in printed)

    other = tmp_path / "other.txt"
    other.write_text("".join(f"{row[2]} {row[0]}\n" if row else "\n" for row in gold))
    scores = evaluate.run(str(export), str(other), columns={"word": 1, "tag": 0})["eval"]
    assert scores["f1"] == pytest.approx(json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]["f1"])
    code = cli.exit_code_of(lambda: evaluate.main([*call, f"--corpus={other}", "--label=x"]))
    assert code == 2 and "--label=x has no effect on a model of examples.kind=tagged" in capsys.readouterr().err
    assert cli.exit_code_of(lambda: evaluate.main([*call, "--tag=0"])) == 2
    assert "--tag=0 names a column of a labeled file; add --corpus=FILE" in capsys.readouterr().err
