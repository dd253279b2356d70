"""The command line of predict, and of evaluate on minimal pairs."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bertjax.cli import evaluate, predict
from bertjax.config import export
from bertjax.runtime import command_line
from tests.inference.conftest import LONGEST, sentences
from tests.waiting import LIMIT_SECONDS

TEXTS = [f"{text} [MASK]" for text in sentences(5, most_words=6)]
LINES = "".join(f"{text}\n" for text in TEXTS)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> str:
    """An export."""
    folder = tmp_path_factory.mktemp("models") / "export"
    export.write(folder, model)
    return str(folder)


@pytest.fixture(scope="module")
def bare(encoder_alone, tmp_path_factory) -> str:
    """An export without heads."""
    folder = tmp_path_factory.mktemp("models") / "bare"
    export.write(folder, encoder_alone.model)
    return str(folder)


def call(*flags: str, main=predict.main) -> int:
    return command_line.exit_code_of(lambda: main([*flags, "--platform=cpu"]))


def answers(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_sentences_files_and_streams_give_the_results_of_python(folder, predictor, tmp_path, capsys, monkeypatch):
    expected = predictor.fill(TEXTS, top=2)
    (tmp_path / "texts.txt").write_text("\ufeff" + LINES.replace("\n", "\r\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    for source in (TEXTS, [f"--file={tmp_path / 'texts.txt'}"], []):
        assert call(folder, "--top=2", *source) == 0
        assert answers(capsys.readouterr().out) == expected


def test_embeddings_as_json_and_as_an_array(folder, bare, predictor, tmp_path, capsys):
    expected = predictor.embed(TEXTS, normalize=True)
    assert call(folder, *TEXTS, "--do=embed", "--normalize", f"--out={tmp_path / 'vectors.npy'}") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), expected)
    assert call(bare, *TEXTS, "--normalize") == 0
    vectors = np.array([answer["embedding"] for answer in answers(capsys.readouterr().out)])
    np.testing.assert_array_equal(vectors.astype(np.float32), expected)


def test_a_closed_pipe_ends_the_command_without_an_error(folder):
    command = [sys.executable, "-m", "bertjax", "predict", folder, "--platform=cpu", "--do=embed"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    process.stdin.write(b"abc\n" * 3000)
    process.stdin.close()
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    assert first["text"] == "abc" and len(first["embedding"]) == 16
    assert process.wait(timeout=LIMIT_SECONDS) == command_line.UNREAD and process.stderr.read() == b""


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("a.txt", "a [MASK]\n\nb [MASK]\n", "a.txt:2 is blank"),
        ("a.txt", "a [mask]\n", "a.txt:1 has no [MASK]; write [MASK], in capital letters"),
        ("a.txt", "PK\x03\x04\x14\xff\n", "a.txt looks like a .zip archive and not like text in UTF-8; extract it"),
        ("a.txt", "", "a.txt has no lines, so there is nothing to predict"),
        ("a.jsonl", '{"text": "a [MASK]"}\n{"body": "x"}\n', "a.jsonl:2 has no column 'text'; it has 'body';"),
        ("a.jsonl", '{"text": 3}\n', "a.jsonl:1: 'text' is '3', not a string"),
        ("a.jsonl", '{"text": \n', "a.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1 is not a JSON object"),
        ("a.jsonl", '{"text": "[MASK]", "more": ["\\ud800"]}\n', "a.jsonl:1 holds a lone surrogate"),
        ("a.jsonl", '[{"text": "[MASK]", "more": ["\\ud800"]}]\n', "a.jsonl: object 1 holds a lone surrogate"),
        ("a.csv", "text,b\na [MASK],1\n,2\n ,4\n", "a.csv:3: 'text' is blank (2 of 3 rows have a blank text); fill"),
    ],
)
def test_a_bad_file_is_refused(folder, tmp_path, capsys, name, content, complaint):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    _refused(capsys, complaint, folder, f"--file={tmp_path / name}", f"--out={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--file=nowhere.txt"], "nowhere.txt cannot be read: No such file"),
        (["--file=."], ". cannot be read: Is a directory"),
        (["--file=x.txt", "a [MASK]"], "give one of them"),
        (["a [MASK]", "--out=nowhere/out.jsonl"], "--out=nowhere/out.jsonl cannot be written"),
        (["a [MASK]", "--out=vectors.npy"], "--out=vectors.npy can hold only embeddings"),
        (["a [MASK]", "--out=x.xlsx"], "--out=x.xlsx ends in .xlsx; name a file in .jsonl, .json, .csv, or .npy for"),
        (["a", "--do=embed", "--per-token", "--out=x.npy"], "--out=x.npy can hold only embeddings, one for each text"),
        (["a [MASK]", "--do=embed", "--top=3"], "--top has no effect with --do=embed"),
        (["a [MASK]", "--normalize"], "--normalize has no effect with --do=fill"),
        (["a [MASK]", "--layers=1"], "--layers has no effect with --do=fill"),
        (["a [MASK]", "--top=0"], "top=0 must be between"),
        (["a [MASK]", "--do=sing"], "invalid choice: 'sing'"),
        (["a", "--do=embed", "--layers=last4"], "the model has no layer -1; choose from 0"),
        (["a", "--do=embed", "--layers=best"], "--layers=best does not name layers; write --layers=8"),
    ],
)
def test_a_bad_flag_is_refused(folder, capsys, monkeypatch, tmp_path, flags, complaint):
    monkeypatch.chdir(tmp_path)
    _refused(capsys, complaint, folder, *flags)


def test_models_that_cannot_be_used_are_refused(bare, tmp_path, capsys):
    _refused(capsys, "does not exist", "nowhere", "a [MASK]")
    _refused(capsys, "no masked-LM head", bare, "a [MASK]", "--do=fill")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    convert = f"python -m bertjax convert --from={tmp_path} --to="
    _refused(capsys, f"is a checkpoint of transformers; convert it and use the result: {convert}", str(tmp_path))


def _pairs(path, *pairs) -> str:
    lines = (json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": "one"}) for good, bad in pairs)
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"--minimal-pairs={path}"


def test_minimal_pairs_as_json_and_as_a_table(folder, predictor, tmp_path, capsys):
    good, bad = sentences(2, most_words=6)
    flag = _pairs(tmp_path / "pairs.jsonl", (good, bad), (bad, good), ("abc " * LONGEST, good))
    assert call(folder, flag, "--json", main=evaluate.main) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)["minimal_pairs"]
    assert figures["pairs"] == 3 and figures["UID"] == {"one": {n: figures[n] for n in ("accuracy", "ties", "pairs")}}
    assert captured.err == f"1 of 6 sentences were cut to {LONGEST} tokens\n"
    assert call(folder, flag, f"--scores={tmp_path / 'scores.jsonl'}", main=evaluate.main) == 0
    judged = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [record["sentence_good"] for record in judged[:2]] == [good, bad]
    assert judged[0]["point"] + judged[1]["point"] == 1 and judged[0]["good"] == judged[1]["bad"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["accuracy", "one", "all"]


def test_bad_minimal_pairs_are_refused(folder, bare, tmp_path, capsys):
    fine, path = _pairs(tmp_path / "fine.jsonl", ("abc", "abf")), tmp_path / "pairs.jsonl"
    flag = f"--minimal-pairs={path}"
    _refused(capsys, "cannot be read", folder, flag, main=evaluate.main)
    for content, complaint in (
        ("", "has no rows"),
        ('{"sentence_good": "a"}\n', "pairs.jsonl:1 has no column 'sentence_bad'"),
        ('{"sentence_good": "", "sentence_bad": "a"}\n', "pairs.jsonl:1: 'sentence_good' is blank"),
    ):
        path.write_text(content)
        _refused(capsys, complaint, folder, flag, main=evaluate.main)
    path.write_text('{"sentence_good": "a", "sentence_bad": "b", "point": 1}\n')
    _refused(capsys, "pairs.jsonl:1 has the field 'point', in", folder, flag, f"--scores={path}s", main=evaluate.main)
    _refused(capsys, "is not a .jsonl file", folder, "--minimal-pairs=pairs.txt", main=evaluate.main)
    _refused(capsys, "no masked-LM head", bare, fine, main=evaluate.main)
    _refused(capsys, "--scores=x needs --minimal-pairs", folder, "--scores=x", main=evaluate.main)
    _refused(capsys, "give one of them", folder, fine, "--corpus=x", main=evaluate.main)


def _refused(capsys, complaint: str, *flags: str, main=predict.main) -> None:
    assert call(*flags, main=main) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and complaint in captured.err, (
        captured.err
    )
    assert captured.out == ""


def test_layers_and_tokens_from_the_command_line(folder, model, predictor, capsys):
    texts = sentences(3, most_words=6)
    assert call(folder, "--do=embed", "--layers=last2", *texts) == 0
    vectors = [answer["embedding"] for answer in answers(capsys.readouterr().out)]
    np.testing.assert_array_equal(np.float32(vectors), predictor.embed(texts, layers=[1, 2]))
    assert call(folder, "--do=embed", "--per-token", "--layers=0", *texts) == 0
    for answer, text, mean in zip(answers(capsys.readouterr().out), texts, predictor.embed(texts, layers=[0])):
        assert len(answer["pieces"]) == len(model.tokenizer.encode([text])[0]) + 2 == len(answer["embeddings"])
        np.testing.assert_allclose(np.mean(answer["embeddings"], axis=0), mean, atol=1e-5)
