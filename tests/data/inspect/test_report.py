"""The report of a store, and the rule of Gowda & May on counts with a known result."""

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.filters.rules import Length
from bertjax.data.inspect.characters import characters_of
from bertjax.data.inspect.damage import _found
from bertjax.data.inspect.report import report
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import SPLITS, SplitWriter, TokenStore, write_manifest
from tests.data import scripts


def counts(**changes):
    return {"documents": 3, "sentences": 9, "words": 100, "tokens": 130, "unk": 0, "bytes": 600} | changes


@pytest.fixture
def reported(tmp_path):
    """reported(counts by source of the training split) -> the report of a store that has such counts."""
    trained = tokenizer.train(["some words"], TokenizerConfig(vocab_size=30, byte_fallback=False, kind="char"))
    (tmp_path / "tokenizer").mkdir()
    trained.save(tmp_path / "tokenizer")
    characters_of(["some words"], trained).save(tmp_path)
    for split in SPLITS:
        writer = SplitWriter(tmp_path, split)
        writer.append(np.array([7, 8], np.uint16), np.array([2]), np.array([1]))
        writer.close()

    def report_of(train):
        contents = {
            "counts": {"train": train, "heldout": dict.fromkeys(train, counts())},
            "duplicates": dict.fromkeys(train, 2),
            "skipped": dict.fromkeys(train, 0),
            "longest": [[99, next(iter(train)), "file:7"]],
            "ledger": {},
        }
        write_manifest(tmp_path, {}, trained, contents)
        return report(TokenStore.open(tmp_path))

    return report_of


def test_a_tokenizer_that_does_not_fit_gets_a_warning(reported):
    text = reported({"a": counts(unk=2), "b": counts(tokens=250)})
    [warning] = [line for line in text.splitlines() if line.startswith("warning")]
    assert "1.5% of the tokens of train a are [UNK]" in warning
    assert "duplicates dropped: 4 documents (a 2, b 2)" in text and "a/file:7 99" in text
    assert "warning" not in reported({"a": counts(unk=1), "b": counts(tokens=300)})
    # A small corpus has many tokens a word whatever the vocabulary is: more pieces would be too rare.
    text = reported({"a": counts(tokens=340)})
    assert "raise data.tokenizer.vocab_size" not in text and "warning:" not in text
    text = reported({"a": counts(tokens=130), "b": counts(words=10, tokens=60)})
    assert "warning: train b takes 6.0 tokens a word; all training text takes 1.7" in text


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """prepared(documents, **settings of the tokenizer) -> the report of their store."""

    def prepare_(documents, filters=None, share=1.0, **settings):
        folder = tmp_path_factory.mktemp("prepared")
        (folder / "corpus.txt").write_text("\n\n".join(documents))
        config = DataConfig(
            str(folder / "corpus.txt"),
            tokenizer=TokenizerConfig(**settings),
            filters=filters or {},
            share=share,
            store=str(folder),
            workers=0,
        )
        return report(prepare(config))

    return prepare_


def test_losses_of_a_tokenizer_are_named(prepared):
    documents = ["".join(text.split()) for text in scripts.made("thai", 60)]
    text = prepared(documents, kind="wordpiece", vocab_size=300)
    [warning] = [line for line in text.splitlines() if line.startswith("warning") and "became [UNK]" in line]
    share = float(warning.split()[1].rstrip("%")) / 100
    assert share > 0.9 and "100 characters" in warning and "kind=unigram" in warning
    assert "character_coverage" not in warning and "[UNK]; raise" not in text
    assert "every one of" not in text and "became [UNK], although each of them alone has a piece; 100" in text
    assert "its size cannot be judged while" in text and "data.tokenizer.vocab_size=" not in text
    assert "warning:" not in prepared(documents, kind="unigram", vocab_size=400)
    documents = [f"{text} \u0d9a\u0dca\u200d\u0dbb" for text in scripts.made("hebrew", 80)]
    text = prepared(documents, kind="wordpiece", vocab_size=300)
    assert "are removed by the tokenizer, " in text and "U+200D 7" in text and "every one of" not in text
    assert "removed" not in prepared(documents, kind="unigram", vocab_size=400)
    pointed = [text.replace("\u05d0", "\u05d0\u05b8") for text in scripts.made("hebrew", 80)]
    text = prepared(pointed, kind="wordpiece", vocab_size=300, lowercase=True)
    assert "U+05B8" in text and "warning: the tokenizer removes" in text and "data.tokenizer.lowercase" in text
    documents = scripts.made("cyrillic", 60)
    spoiled = [text.encode().decode("latin-1") for text in documents[:20]]
    text = prepared([*documents[20:], *(" ".join(text.split()) for text in spoiled)], kind="char", vocab_size=500)
    [warning] = [line for line in text.splitlines() if line.startswith("warning")]
    assert "look like text of one encoding that was read in another" in warning and "\u00d0" in warning


def test_a_filter_that_drops_many_documents_is_a_warning(prepared):
    documents = scripts.made("cyrillic", 60) + ["Мало слов."] + [f"Мало {i}." for i in range(20)]
    settings = {"kind": "char", "vocab_size": 400}
    text = prepared(documents, {"short": Length(fewest_words=5)}, **settings)
    assert "warning: the filter short drops 26% of the documents (21 of 81)" in text
    assert "warning:" not in prepared(documents[:64], {"short": Length(fewest_words=5)}, **settings)
    # Filters see the whole corpus, whatever share of it is used.
    assert "warning:" not in prepared(documents[:64], {"short": Length(fewest_words=5)}, share=0.3, **settings)


FRENCH = "Les élèves étaient déjà très fatigués après l'été; où êtes-vous allés, à Noël? « Là-bas », répondit-il. " * 5
ICELANDIC = "Það er svo að það þarf að fá þá til að þýða þetta á íslensku, því að ég hef ekki tíma í það núna. " * 5


@pytest.mark.parametrize("name", scripts.NAMES)
def test_text_of_twelve_scripts_is_whole(name):
    assert not any(map(_found, scripts.texts(name, 12)))
    assert not any(map(_found, (FRENCH, ICELANDIC, "if a < b && c > d: x <= y", "AT&T; R&D < 3 <3")))


def test_text_of_one_encoding_that_was_read_in_another():
    for text in (FRENCH, *(scripts.texts(name, 12)[0] for name in ("hangul", "devanagari", "cyrillic"))):
        assert set(_found(text.encode().decode("latin-1"))) == {"mojibake"}
        assert set(_found(text.encode().decode("cp1252", "replace"))) == {"mojibake"}
    for name, encoding in (("hangul", "cp949"), ("cyrillic", "cp1251"), ("kana", "euc_jp")):
        assert set(_found(scripts.texts(name, 12)[1].encode(encoding, "ignore").decode("latin-1"))) == {"mojibake"}
    assert set(_found("un caf\ufffd et un \ufffdt\ufffd")) == {"mojibake"}
    html = "<div class='a'><p>Text &amp; more</p><br/>Second&nbsp;line</div> " * 3
    assert set(_found(html)) == {"markup"} and "<div" in _found(html)["markup"]
