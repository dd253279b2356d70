"""The store of a corpus: by the corpus, by its fingerprint, or named alone."""

import dataclasses

import pytest

from bertjax.data.config import SourceConfig, TokenizerConfig
from bertjax.data.preparation.prepare import open_or_prepare, prepare
from bertjax.data.preparation.spec import find, path_of, spec_of
from bertjax.runtime.errors import UserError


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


def test_one_store_is_opened_without_the_corpus(config, tmp_path, capsys):
    made = prepare(config)
    (tmp_path / "corpus.txt").unlink()
    alone = dataclasses.replace(config, store=str(made.path))
    capsys.readouterr()
    assert open_or_prepare(alone, may_prepare=False).fingerprint == made.fingerprint
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
        ("heldout", "other.txt", "data.heldout=False"),
        ("tokenizer", TokenizerConfig(vocab_size=300), "data.tokenizer.vocab_size=400"),
        ("sources", {"a": SourceConfig("a.txt"), "b": SourceConfig("b.txt")}, "data.sources={'corpus': 'text'}"),
    ],
)
def test_one_store_must_have_the_settings_of_the_configuration(config, setting, value, complaint):
    made = prepare(config)
    corpus = "embedded:en" if setting == "sources" else config.corpus
    config = dataclasses.replace(config, **{"corpus": corpus, "store": str(made.path), setting: value})
    with pytest.raises(UserError) as caught:
        open_or_prepare(config, may_prepare=True)
    assert "is one token store, which was made with " in str(caught.value) and complaint in str(caught.value)
