"""Every format, masking, tokenizer kind and report on twelve scripts: how much is lost, and what is predicted."""

import functools

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.batch import Draw, PlacedExamples, place
from bertjax.data.config import DataConfig
from bertjax.data.examples import Vocabulary
from bertjax.data.formats import FORMATS, KINDS
from bertjax.data.framing import special_tokens
from bertjax.data.masking import KINDS as MASKING_KINDS
from bertjax.data.masking import MASKINGS, mask
from bertjax.data.plan import Plan, Spec, open_or_make
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig
from tests.data import scripts

SEQ_LEN = 128
EPOCHS = 3
# Pieces; SentencePiece finds no more in 200 documents. Real text has more words.
PIECES = dict.fromkeys(scripts.NAMES, 720) | {"han": 1_200, "latin": 4_600, "hangul": 4_000}
TOKENIZER_KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS
PAIRS = ("segment_pairs", "sentence_pairs", "sentence_order", "sentence_structure", "sentence_distance")
WITHOUT_SPACES = ("thai", "han", "kana")
# Real text without spaces between particles, combining marks, and no spaces at all; the others are the night's.
ALWAYS = ("latin", "devanagari", "han")
each_script = pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in scripts.NAMES]
)


@pytest.fixture(scope="module")
def store_of(tmp_path_factory):
    """store_of(script) -> its token store, of the recommended kind of tokenizer."""
    folder = tmp_path_factory.mktemp("scripts")

    @functools.cache
    def make(name: str) -> TokenStore:
        (folder / f"{name}.txt").write_text("\n\n".join(map(_lines, scripts.texts(name))))
        settings = TokenizerConfig(vocab_size=PIECES[name])
        return prepare(DataConfig(str(folder / f"{name}.txt"), tokenizer=settings, store=str(folder), workers=0))

    return make


def _lines(text: str) -> str:
    """Return a text without blank lines, which end a document in .txt."""
    return "\n".join(filter(None, text.splitlines()))


def planned(store: TokenStore, kind: str) -> Plan:
    return open_or_make(store, Spec("train", FORMATS.class_of(kind)(), SEQ_LEN, seed=0))


def beyond_half_a_row(store: TokenStore) -> float:
    """Return the share of tokens that half a row has no room for, even if it starts with their sentence.

    A segment of a pair has half a row on average. In Korean decisions sentences are long, and it is 36%.
    """
    lengths = np.diff(store.split("train").sentences).astype(np.int64)
    return np.maximum(lengths - (SEQ_LEN - special_tokens(2)) // 2, 0).sum() / lengths.sum()


@each_script
@pytest.mark.parametrize("kind", KINDS)
def test_formats_keep_the_text_and_even_labels(store_of, name, kind):
    plan = planned(store_of(name), kind)
    most_lost = 0.0 if kind not in PAIRS else max(0.3, beyond_half_a_row(store_of(name)) + 0.1)
    assert plan.counts.lost_tokens <= most_lost * plan.counts.split_tokens
    if kind in PAIRS and len(FORMATS.class_of(kind).relations) == 2:
        shares = plan.examples.label_counts() / len(plan.examples)
        assert 0.35 <= shares.min() and shares.max() <= 0.65, shares


def placed(store: TokenStore, most: int = 400) -> PlacedExamples:
    """Examples of a store, one in each row."""
    examples, vocabulary = planned(store, "doc_sentences").examples, Vocabulary.of(store.tokenizer)
    chosen = np.linspace(0, len(examples) - 1, min(most, len(examples))).astype(np.int64)
    return place(examples.take(chosen), np.arange(len(chosen))[:, None], SEQ_LEN, vocabulary)


def chosen_tokens(examples: PlacedExamples, kind: str, store: TokenStore) -> list[np.ndarray]:
    """Which tokens are predicted in each epoch: bool [n]."""
    masking = MASKINGS.class_of(kind)().bind(store)
    draws = (Draw(seed=0, epochs=np.full(len(examples.ragged.ids), epoch)) for epoch in range(EPOCHS))
    return [mask(examples, draw, masking).chosen for draw in draws]


# The largest share of rows without a prediction.
MOST_EMPTY = {"tokens": 0.0, "words": 0.01, "ngrams": 0.01, "spans": 0.03, "phrases": 0.01, "uniform": 0.0}


@each_script
@pytest.mark.parametrize("kind", MASKING_KINDS)
def test_maskings_predict_something_in_every_row(store_of, name, kind):
    store = store_of(name)
    examples = placed(store)
    is_row = examples.ragged.lengths > SEQ_LEN // 2
    counts = np.stack(
        [np.add.reduceat(chosen, examples.ragged.offsets[:-1]) for chosen in chosen_tokens(examples, kind, store)]
    )
    assert np.mean(counts[:, is_row] == 0) <= MOST_EMPTY[kind]
    share = counts.sum() / EPOCHS / np.count_nonzero(~examples.ragged.special)
    # `uniform` predicts from one token to all of them, with a standard deviation of 0.29 per example.
    assert share == (pytest.approx(0.5, abs=0.05) if kind == "uniform" else pytest.approx(0.15, abs=0.01))


@functools.cache
def sentences_of(name: str) -> list[str]:
    return [sentence for text in scripts.texts(name) for sentence in split(text, "punctuation")]


@functools.cache
def trained(name: str, kind: str) -> Tokenizer:
    pieces = 397 if (kind, name) == ("wordpiece", "han") else PIECES[name]  # Chinese words are single characters
    return tokenizer.train(sentences_of(name), TokenizerConfig(kind=kind, vocab_size=pieces))


@each_script
@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_tokenizers_keep_the_text_and_know_its_words(name, kind):
    sentences, tokens = sentences_of(name)[:300], trained(name, kind)
    ids, lengths = tokens.encode_flat(sentences)
    assert np.mean(ids == tokens.unk_id) < 0.01
    words = len(ids) - np.count_nonzero(Vocabulary.of(tokens).continues_word[ids])
    if name in WITHOUT_SPACES:
        assert len(ids) / words < 1.6, "a unit of masking is a piece, not a clause"
    decoded = "".join(tokens.decode(part) for part in np.split(ids, np.cumsum(lengths)[:-1]))
    assert "".join(decoded.split()) == "".join("".join(sentences).split()) or kind == "wordpiece"
