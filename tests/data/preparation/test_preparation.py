"""Preparation: deterministic, atomic, content-addressed, in constant memory, with clear errors for bad input."""

import dataclasses
import sys

import pytest

from bertjax.data.config import DataConfig, NearDuplicates, SourceConfig, TokenizerConfig
from bertjax.data.filters.rules import GopherQuality, Length
from bertjax.data.preparation.prepare import open_or_prepare, prepare
from bertjax.data.preparation.spec import find, path_of, spec_of
from bertjax.data.store import TokenStore
from bertjax.runtime.errors import UserError
from tests.data.preparation.corpora import in_a_process, store_path, write_corpus


def test_the_path_depends_on_content_and_settings(config, tmp_path):
    same, long = store_path(config), {"length": Length(fewest_words=5)}
    choices = [
        {"heldout_share": 0.1},
        {"share": 0.5},
        {"splitter": "line"},
        {"heldout": config.corpus},
        {"tokenizer": TokenizerConfig(vocab_size=401)},
        {"filters": long},
        {"filters": {"length": Length(fewest_words=6)}},
        {"filters": long | {"b": GopherQuality()}},
        {"filters": {"b": GopherQuality()} | long},
        {"near_duplicates": NearDuplicates(drop=True)},
        {"near_duplicates": NearDuplicates(drop=True, ngram=4)},
    ]
    paths = {store_path(dataclasses.replace(config, **choice)) for choice in choices}
    write_corpus(tmp_path / "corpus.txt", documents=200, seed=1)
    assert len(paths | {same, store_path(config)}) == 2 + len(choices)
    free = {"workers": 3, "cache_dir": "elsewhere"}
    assert store_path(dataclasses.replace(config, **free)) == store_path(config)
    assert same.name.startswith("corpus-") and same.parent == tmp_path / "stores"


def test_duplicates_are_dropped_and_counted(config, tmp_path):
    once = prepare(config)
    text = (tmp_path / "corpus.txt").read_text()
    first = text.partition("\n\n")[0]
    (tmp_path / "corpus.txt").write_text(f"{text}{text}{first}\n\nOne that is new.\n")
    twice = prepare(config)
    assert twice.manifest["duplicates"] == {"corpus": 201}
    documents = [sum(counts["documents"] for counts in store.manifest["splits"].values()) for store in (once, twice)]
    assert documents == [200, 201]
    (tmp_path / "copies.txt").write_text(text * 2)
    copies = prepare(dataclasses.replace(config, corpus=str(tmp_path / "copies.txt")))
    assert once.tokenizer.fingerprint == copies.tokenizer.fingerprint


@pytest.mark.slow
def test_two_processes_that_prepare_one_store_make_one(config, tmp_path):
    processes = [in_a_process(config) for _ in range(2)]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0]
    [folder] = [path for path in (tmp_path / "stores").iterdir() if path.is_dir()]
    TokenStore.open(folder, verify=True)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_corpus(config, tmp_path):
    tokenizer = TokenizerConfig(vocab_size=400, kind="bpe", sample_characters=300_000)
    small = dataclasses.replace(config, tokenizer=tokenizer, splitter="line", workers=None)
    peaks = []
    for documents in (6_000, 30_000):
        write_corpus(tmp_path / "corpus.txt", documents)
        # The peak of this process alone: `ru_maxrss` would start from the peak of pytest.
        # Nor do pages of the store that its report has read count: the kernel drops them when memory is short.
        process = in_a_process(
            small,
            before="from bertjax.data.inspect import damage; damage._DOCUMENTS = 2",
            afterward=r"print(re.search(r'VmHWM:\s*(\d+) kB', open('/proc/self/status').read())[1])",
        )
        peaks.append(int(process.communicate()[0].split()[-1]) * 1024)
    text = (tmp_path / "corpus.txt").stat().st_size
    assert text > 10_000_000 and peaks[1] - peaks[0] < 0.5 * text


def error_of(config):
    with pytest.raises(UserError) as caught:
        prepare(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"share": 0.001}, "or change data.heldout or data.share"),
        ({"filters": {"length": Length(fewest_words=10_000)}}, "or change data.heldout or data.filters"),
        ({"heldout": "other.txt"}, "gives 200 training and 1 held-out documents"),
        ({"tokenizer": TokenizerConfig()}, "ask for at most"),
        ({"corpus": "bad.txt"}, "is not UTF-8"),
        ({"store": "other.txt/stores"}, "cannot write the token store"),
    ],
)
def test_what_cannot_become_a_store_leaves_none(config, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "other.txt", documents=1, seed=2)
    (tmp_path / "bad.txt").write_bytes(b"One.\n\n\xff\n")
    assert message in error_of(dataclasses.replace(config, **settings))
    assert not list(tmp_path.glob("stores/*/manifest.json"))


def test_a_store_is_found_by_its_fingerprint_without_the_corpus(config, tmp_path):
    made, other = prepare(config), prepare(dataclasses.replace(config, splitter="line"))
    (tmp_path / "corpus.txt").unlink()
    assert other.path.parent == made.path.parent
    for store in (made, other):
        assert find(config, store.fingerprint) == store.path
        assert find(dataclasses.replace(config, store=str(store.path)), store.fingerprint) == store.path
    assert find(config, "0" * 64) is None
    assert find(dataclasses.replace(config, store=str(tmp_path / "none")), made.fingerprint) is None
    (made.path / "manifest.json").write_text("{")
    assert find(config, made.fingerprint) is None


def test_the_field_of_held_out_texts_is_part_of_a_store_of_several_sources(config):
    several = {"corpus": DataConfig.corpus, "heldout": config.corpus, "sources": {"a": SourceConfig(config.corpus)}}
    specs = [spec_of(dataclasses.replace(config, **several, text_field=field)) for field in ("text", "body")]
    assert specs[0] != specs[1]


def test_one_store_is_opened_without_the_corpus(config, tmp_path, capsys):
    made = prepare(config)
    (tmp_path / "corpus.txt").unlink()
    named = [
        dataclasses.replace(config, corpus=letter * (240 // len(letter.encode()))) for letter in "a\uac00\U0001d538"
    ]
    assert all(len(f"{path_of(each, {}).name}.partial.lock".encode()) < 256 for each in named)
    with pytest.raises(UserError, match="https://e.org/a is a URL, which is not opened here"):
        path_of(dataclasses.replace(config, store="https://e.org/a"), {})
    alone = dataclasses.replace(config, store=str(made.path))
    capsys.readouterr()
    assert open_or_prepare(alone, spec_of(alone)).fingerprint == made.fingerprint
    assert capsys.readouterr().out == (
        f"data.store={made.path} is one token store; corpus {str(tmp_path / 'corpus.txt')!r} is not read\n"
    )
    assert path_of(alone, spec_of(alone)) == made.path and prepare(alone).path == made.path


@pytest.mark.parametrize(
    "setting, value, complaint",
    [
        ("splitter", "line", "data.splitter='punctuation', and the configuration has 'line'"),
        ("share", 0.5, "data.share=1.0, and the configuration has 0.5"),
        ("on_bad_document", "skip", "data.on_bad_document='stop'"),
        ("heldout_share", 0.2, "data.heldout_share=0.05"),
        ("heldout", "other.txt", "data.heldout=0.05, and the configuration has 'a file'"),
        ("tokenizer", TokenizerConfig(vocab_size=300), "data.tokenizer.vocab_size=400"),
        ("sources", {"a": SourceConfig("a.txt"), "b": SourceConfig("b.txt")}, "data.sources={'corpus': ['a file',"),
    ],
)
def test_one_store_must_have_the_settings_of_the_configuration(config, setting, value, complaint):
    made = prepare(config)
    corpus = "embedded:en" if setting == "sources" else config.corpus
    config = dataclasses.replace(config, **{"corpus": corpus, "store": str(made.path), setting: value})
    with pytest.raises(UserError) as caught:
        open_or_prepare(config, spec_of(config))
    assert "is one token store, which was made with " in str(caught.value) and complaint in str(caught.value)
