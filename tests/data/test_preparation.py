"""Preparing: deterministic, atomic, content-addressed, in constant memory, with a clear word for bad input."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bertjax.data import sources
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation import is_heldout, open_or_prepare, prepare, sample_sentences, store_path
from bertjax.data.sentences import split
from bertjax.data.store import SPLITS, TokenStore
from bertjax.errors import UserError


def write_corpus(path, documents, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(500)]
    with open(path, "w") as file:
        for _ in range(documents):
            for _ in range(draw.randint(2, 9)):
                file.write(" ".join(draw.choices(words, k=12)).capitalize() + ".\n")
            file.write("\n")


@pytest.fixture
def config(tmp_path):
    write_corpus(tmp_path / "corpus.txt", documents=200)
    return DataConfig(
        corpus=str(tmp_path / "corpus.txt"),
        store=str(tmp_path / "stores"),
        tokenizer=TokenizerConfig(vocab_size=400),
    )


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_a_process(config, afterwards=""):
    code = f"from bertjax.data.preparation import *\nfrom bertjax.data.config import *\nprepare({config})\n{afterwards}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_the_store_holds_the_corpus(config, capsys):
    store = prepare(config)
    kept = {side: [] for side in SPLITS}
    for document in sources.documents(config.corpus, "text"):
        kept["heldout" if is_heldout(document.text, config.heldout_share) else "train"].append(document.text)
    for side in SPLITS:
        part = store.split(side)
        decoded = [
            [store.tokenizer.decode(part.tokens[part.sentences[s] : part.sentences[s + 1]]) for s in range(first, end)]
            for first, end in zip(part.documents[:-1], part.documents[1:], strict=True)
        ]
        assert decoded == [split(text, "punctuation") for text in kept[side]]
        assert store.manifest["splits"][side]["words"] == sum(len(text.split()) for text in kept[side])
    printed = capsys.readouterr().out
    assert str(store.path) in printed and "vocabulary 400" in printed


def test_the_same_input_gives_the_same_bytes(config):
    first = prepare(config)
    second = prepare(dataclasses.replace(config, store=config.store + "2"))
    assert content(first.path) == content(second.path) and first.path.name == second.path.name


def test_the_path_follows_content_and_choices(config, tmp_path):
    same, choices = store_path(config), {}
    choices["share"] = dataclasses.replace(config, heldout_share=0.1)
    choices["splitter"] = dataclasses.replace(config, splitter="line")
    choices["heldout"] = dataclasses.replace(config, heldout=config.corpus)
    choices["tokenizer"] = dataclasses.replace(config, tokenizer=TokenizerConfig(vocab_size=401))
    paths = {store_path(choice) for choice in choices.values()}
    write_corpus(tmp_path / "corpus.txt", documents=200, seed=1)
    assert len(paths | {same, store_path(config)}) == 6
    assert same.name.startswith("corpus-") and same.parent == tmp_path / "stores"


def test_held_out_documents_from_a_file(config, tmp_path):
    write_corpus(tmp_path / "other.txt", documents=7, seed=2)
    counts = prepare(dataclasses.replace(config, heldout=str(tmp_path / "other.txt"))).manifest["splits"]
    assert (counts["train"]["documents"], counts["heldout"]["documents"]) == (200, 7)


def test_share_of_held_out_documents():
    heldout = sum(is_heldout(f"document {i}", 0.05) for i in range(20_000))
    assert abs(heldout - 1000) < 4 * np.sqrt(20_000 * 0.05 * 0.95)
    assert is_heldout("\u1112\u1161\u11ab", 0.5) == is_heldout("\ud55c", 0.5)


def test_an_existing_model_is_taken_and_named_by_its_content(config, tmp_path):
    model = prepare(config).path / "tokenizer" / "tokenizer.model"
    copy = tmp_path / "copy.model"
    copy.write_bytes(model.read_bytes())
    taken, again = (
        prepare(dataclasses.replace(config, tokenizer=TokenizerConfig(model=str(path)))) for path in (model, copy)
    )
    assert taken.path == again.path and taken.tokenizer.model == model.read_bytes()


def test_sample_is_uniform_ordered_and_bounded():
    sentences = [f"{i:04}" for i in range(1000)]
    sample = sample_sentences(sentences, 400)
    assert len(sample) == 100 and sample == sorted(sample) and sample == sample_sentences(iter(sentences), 400)
    assert 350 < np.mean([int(sentence) for sentence in sample]) < 650
    assert sample_sentences(sentences, 4000) == sentences
    assert len(sample_sentences(sentences, 1)) == 1


@pytest.mark.parametrize("awaited", ["*.lock", "*.partial", "*.partial/heldout.tokens.bin"])
def test_a_killed_prepare_leaves_no_store_and_the_next_one_works(config, tmp_path, awaited):
    write_corpus(tmp_path / "corpus.txt", documents=6000)
    process = in_a_process(config)
    while not list((tmp_path / "stores").glob(awaited)):
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for folder in (tmp_path / "stores").iterdir():
        with pytest.raises(UserError):
            TokenStore.open(folder)
    undisturbed = prepare(dataclasses.replace(config, store=config.store + "2"))
    assert content(prepare(config).path) == content(undisturbed.path)
    assert not list((tmp_path / "stores").glob("*.partial"))


def test_two_processes_that_prepare_one_store_end_in_one(config, tmp_path):
    processes = [in_a_process(config) for _ in range(2)]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0]
    [folder] = [path for path in (tmp_path / "stores").iterdir() if path.is_dir()]
    TokenStore.open(folder, verify=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_corpus(config, tmp_path):
    small = dataclasses.replace(
        config, tokenizer=TokenizerConfig(vocab_size=400, kind="bpe", sample_characters=300_000), splitter="line"
    )
    peaks = []
    for documents in (6_000, 30_000):
        write_corpus(tmp_path / "corpus.txt", documents)
        # The peak of this process alone: `ru_maxrss` would start from the peak of pytest.
        process = in_a_process(small, r"print(re.search(r'VmHWM:\s*(\d+) kB', open('/proc/self/status').read())[1])")
        peaks.append(int(process.communicate()[0].split()[-1]) * 1024)
    text = (tmp_path / "corpus.txt").stat().st_size
    assert text > 10_000_000 and peaks[1] - peaks[0] < 0.5 * text


def error_of(config):
    with pytest.raises(UserError) as caught:
        prepare(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("documents", [1, 2, 3])
def test_fewer_than_two_documents_on_a_side(config, tmp_path, documents):
    write_corpus(tmp_path / "corpus.txt", documents)
    assert "but sentence pairs need two of each: add documents" in error_of(config)
    assert not [path for path in (tmp_path / "stores").iterdir() if path.is_dir()]


def test_one_held_out_document_in_a_file(config, tmp_path):
    write_corpus(tmp_path / "other.txt", documents=1)
    message = error_of(dataclasses.replace(config, heldout=str(tmp_path / "other.txt")))
    assert "gives 200 training and 1 held-out documents" in message


def test_a_document_without_a_token_is_named(config, tmp_path):
    with open(tmp_path / "corpus.txt", "a") as file:
        file.write("\u2581\n")
    assert "holds no token" in error_of(config)
    assert not list((tmp_path / "stores").glob("*.partial"))


def test_too_small_a_corpus(config):
    assert "ask for at most" in error_of(dataclasses.replace(config, tokenizer=TokenizerConfig()))


def test_a_folder_that_takes_no_files(config, tmp_path):
    (tmp_path / "file").touch()
    message = error_of(dataclasses.replace(config, store=str(tmp_path / "file" / "stores")))
    assert "cannot write the token store" in message


def test_a_damaged_store_is_not_mended_in_silence(config):
    path = prepare(config).path
    (path / "train.tokens.bin").write_bytes(b"")
    assert "delete the folder and prepare again" in error_of(config)
    with pytest.raises(UserError, match="delete the folder"):
        open_or_prepare(config, may_prepare=True)


def test_open_or_prepare(config, tmp_path):
    config = dataclasses.replace(config, splitter="line")
    with pytest.raises(UserError) as caught:
        open_or_prepare(config, may_prepare=False)
    command = str(caught.value).partition("python -m bertjax.prepare")[2].split()
    assert f"--config.data.corpus={config.corpus}" in command and "--config.data.splitter=line" in command
    assert "--config.data.tokenizer.vocab_size=400" in command and command[0] == "--config=FILE" and len(command) == 5
    made = open_or_prepare(config, may_prepare=True)
    assert open_or_prepare(config, may_prepare=False).fingerprint == made.fingerprint
