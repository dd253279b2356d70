"""New words and positions for an export, and pretraining that continues from there."""

import errno
import itertools
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import compress, convert, extend
from bertjax.config import export
from bertjax.runtime import command_line, storage
from tests import runs
from tests.interop import models

# No piece starts like one of the words of the texts.
NEW = ["fedcab", "bbbb", "##eee"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A BERT of Hugging Face with both heads, converted."""
    folder = tmp_path_factory.mktemp("source")
    export.write(folder / "made", models.make(models.PARTS["BertForPreTraining"], models.trained()))
    convert.run(folder / "made", folder / "theirs")
    convert.run(folder / "theirs", folder / "bert")
    return folder / "bert"


def write(path, *lines: str):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_new_word_is_one_token_and_long_texts_fit(source, tmp_path):
    extend.run(source, tmp_path / "new", pieces=str(write(tmp_path / "words.txt", *NEW)), max_positions=50)
    module, params, tokens = bertjax.load(tmp_path / "new")
    assert tokens.encode(["fedcab bbbb ddeee"]) == [[60, 61, *tokens.encode(["dd"])[0], 62]]
    assert module.config.max_positions == 50 and module.config.vocab_size == 63
    tokens_BT, _ = tokens.rows([" ".join(["fedcab"] * 60)], seq_len=50)
    assert np.isfinite(jax.jit(module.apply)({"params": params}, tokens_BT).hidden).all()
    assert (tmp_path / "new" / "new_pieces.txt").read_text().split() == NEW
    position = params["embeddings"]["position"]
    assert np.array_equal(position[20:40], position[:20]) and np.array_equal(position[40:], position[:10])


def corpus(path):
    """Text of letters that the tokenizer knows, with words that it splits."""
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdef"), draw.integers(2, 9))) for _ in range(60)]
    sentences = (" ".join(draw.choice(words, draw.integers(3, 9))).capitalize() + "." for _ in itertools.count())
    documents = (" ".join(itertools.islice(sentences, int(draw.integers(2, 20)))) for _ in range(60))
    path.write_text("\n\n".join(documents))
    return path


@pytest.mark.parametrize(
    "write_folder",
    [
        lambda source, target: extend.run(source / "bert", target, max_positions=50),
        lambda source, target: convert.run(source / "bert", target),
        lambda source, target: convert.run(source / "theirs", target),
        lambda source, target: compress.run(source / "bert", target, compress.Cuts(layers=(0,))),
    ],
    ids=["extend", "to transformers", "from transformers", "compress"],
)
def test_a_folder_is_written_whole_or_not_at_all(source, tmp_path, monkeypatch, write_folder):
    """A command that was stopped leaves nothing that the same command would refuse to replace."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(storage, "write_text", full)  # of the last file
        with pytest.raises(OSError, match="No space"):
            write_folder(source.parent, tmp_path / "new" / "model")
        assert list((tmp_path / "new").iterdir()) == []
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to("empty")
        monkeypatch.chdir(tmp_path / "empty")
        for target in (Path(), tmp_path / "link"):  # which nothing can replace
            with pytest.raises(OSError, match="No space"):
                write_folder(source.parent, target)
            assert list((tmp_path / "empty").iterdir()) == []
    write_folder(source.parent, tmp_path / "new" / "model")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]
    write_folder(source.parent, Path())
    assert {path.name for path in (tmp_path / "new" / "model").iterdir()} == set(os.listdir(tmp_path / "link"))


@pytest.mark.slow
def test_from_hugging_face_through_new_words_and_training_and_back(source, tmp_path, monkeypatch, capsys):
    """The whole road of docs/guides/adaptation.md, on one very small model."""
    text = corpus(tmp_path / "papers.txt")
    code = command_line.exit_code_of(
        lambda: extend.main(
            [f"{source}", f"--to={tmp_path / 'new'}", f"--corpus={text}", "--new-pieces=20", "--max-positions=32"]
        )
    )
    output = capsys.readouterr().out
    assert code == 0 and "ids           60 -> 80\npositions     20 -> 32\n" in output
    assert f"-m bertjax.train --config=configs/adapt.py:{tmp_path / 'new'} --config.data.corpus=CORPUS\n" in output
    command = [
        f"--config=configs/adapt.py:{tmp_path / 'new'}",
        f"--config.data.corpus={text}",
        f"--config.data.store={tmp_path / 'stores'}",
        "--config.data.heldout_share=0.2",
        "--config.stages=[{'steps': 30, 'seq_len': 32, 'batch': 8}]",
        "--config.optimizer.warmup_steps=3",
        "--config.optimizer.learning_rate=1e-2",
        "--config.runtime.log_every=1",
        "--config.eval.rows=16",
        f"--workdir={tmp_path / 'run'}",
    ]
    assert runs.call(*command) == 0
    losses = [loss for _, loss, _ in runs.losses(tmp_path / "run")]
    assert len(losses) == 30 and np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
    trained = bertjax.load(tmp_path / "run")
    assert trained.tokenizer == bertjax.load(tmp_path / "new").tokenizer
    assert trained.module.config.norm_epsilon == 1e-6 and trained.module.config.max_positions == 32
    convert.run(tmp_path / "run", tmp_path / "theirs")
    convert.run(tmp_path / "theirs", tmp_path / "again")
    assert bertjax.load(tmp_path / "again").tokenizer.vocab_size == 80


def test_remarks_on_words_of_a_corpus(source, tmp_path):
    text = corpus(tmp_path / "papers.txt")
    counted, *_ = extend.run(source, tmp_path / "mined", corpus=str(text), count=20)
    _, words, before, now = (int(n) for n in ["0", *(w.replace(",", "") for w in counted.split() if w[0].isdigit())])
    assert words < now < before and len((tmp_path / "mined" / "new_pieces.txt").read_text().split()) == 20
    pieces = str(write(tmp_path / "words.txt", "fedcab", "a", "fedcab", "zz"))
    notes = extend.run(source, tmp_path / "listed", pieces=pieces)
    assert notes[0] == "skipped, in the vocabulary already or listed twice: 2"
    assert notes[1] == "new pieces that were [UNK] before and start with its row: 1"


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ([], "nothing to extend; give --pieces, --corpus, --mix or --max-positions"),
        (["--pieces={tmp}/none.txt"], "{tmp}/none.txt cannot be read: No such file"),
        (["--pieces={tmp}/known.txt"], "all 2 pieces are in the vocabulary already; there is nothing to add"),
        (["--pieces={tmp}/known.txt", "--corpus=embedded:en"], "exclude each other; give one of them"),
        (["--corpus={tmp}/none"], "{tmp}/none"),
        (["--corpus={tmp}/known.txt"], "--new-pieces=1000 is too many: 0 words"),
        (["--corpus={tmp}/known.txt", "--new-pieces=0"], "--new-pieces: 0 must be a whole number, at least 1"),
        (["--max-positions=50", "--new-pieces=9"], "--new-pieces=9 counts words of a corpus; name it with --corpus"),
        (["--max-positions=20"], "--max-positions=20 does not exceed the present 20"),
        (["--max-positions=-1"], "--max-positions=-1 does not exceed the present 20"),
        (["--max-positions=many"], "--max-positions: invalid int value: 'many'; see python -m bertjax extend --help"),
    ],
)
def test_bad_input_is_reported_in_one_line(source, tmp_path, capsys, flags, complaint):
    write(tmp_path / "known.txt", "a", "##a")
    flags = [flag.format(tmp=tmp_path) for flag in flags]
    error = refusal(capsys, source, f"--to={tmp_path / 'new'}", *flags)
    assert error.startswith("error: ")
    assert complaint.format(tmp=tmp_path) in error and not (tmp_path / "new").exists()


def test_models_that_cannot_be_extended(source, undisturbed, tmp_path, capsys):
    words, new = f"--pieces={write(tmp_path / 'words.txt', 'fedcab')}", f"--to={tmp_path / 'new'}"
    assert "new pieces need a WordPiece tokenizer, this one is SentencePiece" in refusal(
        capsys, undisturbed, new, words
    )
    theirs = source.parent / "theirs"
    assert f"'{theirs}' is a checkpoint of transformers; convert it" in refusal(capsys, theirs, new, words)
    assert "'nowhere' does not exist; name an export folder" in refusal(capsys, "nowhere", new, words)
    assert "exists and is not empty" in refusal(capsys, source, f"--to={source}", words)


def refusal(capsys, *arguments) -> str:
    """The one line that a refused command prints."""
    assert command_line.exit_code_of(lambda: extend.main([str(argument) for argument in arguments])) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    return output.err
