"""Feeds of every example format, from a configuration to the batches of every host and worker."""

import dataclasses
import errno
import multiprocessing.resource_tracker
import multiprocessing.util

import jax
import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.config import DataConfig, SourceConfig, TokenizerConfig
from bertjax.data.formats import FORMATS, KINDS, StoredExamples
from bertjax.data.order import PERIOD
from bertjax.data.pipeline import Feed, LocalBatches, iterate
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT, SentenceOrderPrediction, SentenceStructurePrediction
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.stages import StepSpec
from tests.batches import assert_equal
from tests.objectives import labeled_batches

T, ROWS = 48, 8
FORMAT_KINDS = tuple(KINDS)


def at(step: int) -> StepSpec:
    """A step of every format in turn."""
    return StepSpec(stage=0, task=FORMAT_KINDS[step % len(FORMAT_KINDS)], seq_len=T, rows=ROWS, first=step * ROWS)


def feed_of(store, kind: str, config: Config = Config(), split: str = "train") -> Feed:  # noqa: B008
    task = Task(MaskedLM(), FORMATS.class_of(kind)())
    return Feeds(dataclasses.replace(config, tasks={"mlm": task}), store).feed(split, T)


@pytest.fixture(scope="module")
def feeds(store) -> dict[tuple[str, int], Feed]:
    return {(kind, T): feed_of(store, kind) for kind in FORMAT_KINDS}


@pytest.mark.parametrize("hosts", [2, 4])
def test_the_global_batch_does_not_depend_on_the_number_of_hosts(feeds, hosts):
    for step in range(len(FORMAT_KINDS), 2 * len(FORMAT_KINDS)):
        expected = LocalBatches(at, feeds, (0,), 1)(step)
        slices = [LocalBatches(at, feeds, (host,), hosts)(step) for host in range(hosts)]
        assert_equal({name: np.concatenate([part[name] for part in slices]) for name in expected}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_the_number_of_workers(feeds, workers):
    make = LocalBatches(at, feeds, (1,), 2)
    steps = range(1_000_000, 1_000_000 + 2 * len(FORMAT_KINDS))
    for step, batch in zip(steps, iterate(make, steps.start, steps.stop, workers, prefetch=1), strict=True):
        assert_equal(batch, make(step))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Grain closes it again
def test_a_worker_that_cannot_be_started_says_why(feeds, monkeypatch):
    def no_process(*args):
        raise OSError(errno.EAGAIN, "no more processes")

    multiprocessing.resource_tracker.ensure_running()  # it is a process too
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", no_process)
    with pytest.raises(OSError, match="no more processes"):
        next(iterate(LocalBatches(at, feeds, (0,), 1), 0, 1, workers=1, prefetch=1))


def test_starting_at_a_late_step_costs_no_more(feeds, monkeypatch):
    """Whatever the first step is, the batches requested for are all that is taken from the store."""
    requested, taken = [], []

    def counted_at(step):
        requested.append(step)
        return at(step)

    take = StoredExamples._assemble
    monkeypatch.setattr(StoredExamples, "_assemble", lambda self, *a, **k: taken.append(self) or take(self, *a, **k))
    for start in (0, 1_000_000):
        requested.clear(), taken.clear()
        steps = range(start, start + len(FORMAT_KINDS))
        assert len(
            list(iterate(LocalBatches(counted_at, feeds, (0,), 1), steps.start, steps.stop, 0, prefetch=1))
        ) == len(steps)
        assert requested == list(steps) and len(taken) == len(steps)


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences"])
def test_an_epoch_has_every_token_of_the_corpus_once(store, feeds, kind):
    feed = feeds[kind, T]
    assert feed.plans[0].counts.lost_tokens == feed.plans[0].counts.repeated_tokens == 0
    batch = feed.batch(np.arange(feed.plans[0].counts.rows))
    assert batch["mlm_dropped_B"].sum() == 0
    rows, places = np.nonzero(batch["mlm_weights_BK"])
    tokens_BT = batch["tokens_BT"].copy()
    tokens_BT[rows, batch["mlm_positions_BK"][rows, places]] = batch["mlm_labels_BK"][rows, places]
    tokens = tokens_BT[(batch["examples_BT"] > 0) & ~feed.vocabulary.is_special[tokens_BT]]
    # The only special symbol in a store is [UNK], and this corpus has no [UNK].
    np.testing.assert_array_equal(np.bincount(tokens, minlength=400), store.unigram_counts("train"))


def prepared(folder, sources) -> tuple[DataConfig, TokenStore]:
    tokenizer = TokenizerConfig(vocab_size=300)
    data = DataConfig(sources=sources, tokenizer=tokenizer, store=str(folder / "stores"), workers=0)
    return data, prepare(data)


def test_sources_take_turns_by_their_weights(tmp_path):
    """Of two corpora of equal size, the one with weight 3 has three times as many rows, in turns."""
    for name, word in (("a", "apple"), ("b", "berry")):
        documents = (f"{word} {i} is {word}. So {i} is it.\n\n" for i in range(400))
        (tmp_path / f"{name}.txt").write_text("".join(documents))
    sources = {name: SourceConfig(str(tmp_path / f"{name}.txt"), weight=w) for name, w in (("a", 1.0), ("b", 3.0))}
    data, store = prepared(tmp_path, sources)
    feed = feed_of(store, "doc_sentences", Config(data=data))
    batch = feed.batch(np.arange(1024))
    of_a = batch["example_ids_BN"][:, 0] < feed.plans[0].counts.examples
    rows_a, rows_b = (plan.counts.rows for plan in feed.plans)
    assert of_a.mean() == pytest.approx(rows_a / (rows_a + 3 * rows_b), abs=0.002)
    texts = [store.tokenizer.decode(row.tolist()) for row in batch["tokens_BT"]]
    assert [text.count("apple") > text.count("berry") for text in texts] == of_a.tolist()
    equal = {name: dataclasses.replace(source, weight=1.0) for name, source in sources.items()}
    together = feed_of(store, "doc_sentences", Config(data=dataclasses.replace(data, sources=equal)))
    assert len(together.plans) == 1  # sources of equal weight are one stream
    feeds = Feeds(Config(data=data, tasks={"mlm": Task(MaskedLM(), FORMATS.class_of("doc_sentences")())}), store)
    shares = feeds.source_shares(feed)
    assert shares["rows"] == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.03)
    in_batch = [(batch["examples_BT"][mine] > 0).sum() for mine in (of_a, ~of_a)]
    assert shares["tokens"]["a"] == pytest.approx(in_batch[0] / sum(in_batch), abs=0.02)
    tokens = [store.manifest["counts"]["train"][name]["tokens"] for name in ("a", "b")]
    assert feeds.source_shares(together) == {"tokens": {"a": tokens[0] / sum(tokens), "b": tokens[1] / sum(tokens)}}
    rows = {name: heldout.plans[0].counts.rows for (_, name), heldout in feeds.further_heldout.items()}
    assert set(rows) == {"a", "b"} and min(rows.values()) > 0
    assert {
        heldout.seed
        for heldout in dataclasses.replace(
            feeds, config=dataclasses.replace(feeds.config, seed=1)
        ).further_heldout.values()
    } == {feeds.config.eval.seed}  # all seeds are scored on the same masks


@pytest.fixture(scope="module")
def three_sizes(tmp_path_factory) -> tuple[DataConfig, TokenStore]:
    """Three sources, each four times as large as the next one."""
    folder, sizes = tmp_path_factory.mktemp("sizes"), {"large": 640, "middle": 160, "small": 40}
    for name, size in sizes.items():
        (folder / f"{name}.txt").write_text("".join(f"{name} {i} is {name}. So {i} is it.\n\n" for i in range(size)))
    return prepared(folder, {name: SourceConfig(str(folder / f"{name}.txt")) for name in sizes})


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.7])
def test_sources_take_turns_by_the_power_of_their_rows(three_sizes, smoothing):
    """p_i = n_i^s / sum n_j^s, the formula of multilingual BERT and XLM-R, with n counted in rows."""
    data, store = dataclasses.replace(three_sizes[0], smoothing=smoothing), three_sizes[1]
    feed = feed_of(store, "doc_sentences", Config(data=data))
    rows = np.array([source.plans[0].counts.rows for source in feed.sources], float)  # in alphabetical order
    assert rows[0] > 3 * rows[1] > 9 * rows[2]
    drawn, ordinals = feed.turns.at(np.arange(PERIOD))
    assert np.bincount(drawn) / PERIOD == pytest.approx(rows**smoothing / np.sum(rows**smoothing), abs=1 / PERIOD)
    far = 10**12 + 12_345  # no draw needs those before it
    assert feed.turns.at(np.array([far]))[0] == drawn[far % PERIOD]
    proportional = feed_of(store, "doc_sentences", Config(data=dataclasses.replace(data, smoothing=1.0)))
    assert len(proportional.plans) == 1
    held_out = Feeds(dataclasses.replace(Config(data=data), tasks={"mlm": Task(MaskedLM())}), store).feed("heldout", T)
    assert len(held_out.plans) == 1


def test_shares_of_tokens_hold_in_tokens(tmp_path):
    """Rows of a source are as full as its documents allow, so shares of rows differ."""
    lengths = {"long": 9, "short": 1}
    for name, length in lengths.items():
        text = "".join(f"{f'{name} {i} is {name}. ' * length}\n\n" for i in range(300))
        (tmp_path / f"{name}.txt").write_text(text)
    shares = {"long": 0.3, "short": 0.7}
    sources = {name: SourceConfig(str(tmp_path / f"{name}.txt"), token_share=shares[name]) for name in lengths}
    data, store = prepared(tmp_path, sources)
    task = Task(MaskedLM(), FORMATS.class_of("doc_sentences")(), row_examples=1)
    feed = Feeds(Config(data=data, tasks={"mlm": task}), store).feed("train", T)
    long, short = (each.plans[0].counts for each in feed.sources)
    assert long.tokens / long.rows > 1.3 * short.tokens / short.rows
    tokens = feed.turns.taken(PERIOD) * [counts.tokens / counts.rows for counts in (long, short)]
    assert tokens / tokens.sum() == pytest.approx(list(shares.values()), abs=2 / PERIOD)
    batch = feed.batch(np.arange(2000))
    texts = [store.tokenizer.decode(row.tolist()) for row in batch["tokens_BT"]]
    in_row = np.sum(batch["examples_BT"] > 0, 1)
    assert in_row[["long" in text for text in texts]].sum() / in_row.sum() == pytest.approx(0.3, abs=0.01)


PACKING_T = 64
FILLS_ITS_ROWS = "full_sentences"
# Pairs, three segments, texts of one document, and pairs of tokens: the others are framed as one of these.
FRAMED = ("segment_pairs", "sentence_structure", FILLS_ITS_ROWS, "token_document")
OBJECTIVES = {
    "segment_pairs": BERT(),
    "sentence_pairs": BERT(),
    "sentence_order": SentenceOrderPrediction(),
    "sentence_structure": SentenceStructurePrediction(),
}


def feed_of_of_packing(store, kind: str, row_examples: int) -> Feed:
    task = Task(OBJECTIVES.get(kind, MaskedLM()), FORMATS.class_of(kind)(), row_examples)
    return Feeds(Config(tasks={"task": task}), store).feed("train", PACKING_T)


def all_rows(feed: Feed) -> dict[str, np.ndarray]:
    return feed.batch(np.arange(feed.plans[0].counts.rows))


@pytest.fixture(scope="module")
def encoder(store) -> EncoderConfig:
    return labeled_batches.encoder(store.tokenizer, PACKING_T)


@pytest.mark.parametrize("kind", FRAMED)
def test_the_packed_loss_is_the_sum_of_the_unpacked_losses(store, encoder, kind):
    alone, packed = (all_rows(feed_of_of_packing(store, kind, row_examples)) for row_examples in (1, 8))
    assert kind == FILLS_ITS_ROWS or len(packed["tokens_BT"]) < len(alone["tokens_BT"])
    assert (packed["example_ids_BN"] >= 0).sum() == (alone["example_ids_BN"] >= 0).sum()
    assert packed["mlm_dropped_B"].sum() == alone["mlm_dropped_B"].sum() == 0
    objective = OBJECTIVES.get(kind, MaskedLM())
    module = objective.model(encoder)
    params = jax.jit(lambda key: objective.init(module, key, jax.tree.map(lambda x: x[:1], alone)))(jax.random.key(0))
    terms = jax.jit(lambda batch: objective.terms(module, params, None, batch, jax.random.key(0), False))
    (sums, metrics), (sums_packed, metrics_packed) = terms(alone), terms(packed)
    for term, total in sums.items():
        np.testing.assert_allclose(sums_packed[term], total, rtol=1e-5)
        np.testing.assert_allclose(objective.weights(packed)[term], objective.weights(alone)[term])
    for name, (right, weight) in metrics.items():
        np.testing.assert_allclose(metrics_packed[name], (right, weight), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_several_examples_of_bounded_length(store, kind):
    """So a row may be longer than the position table, whose rows are the positions."""
    examples = FORMATS.class_of(kind)(max_tokens=PACKING_T // 4)
    task = Task(OBJECTIVES.get(kind, MaskedLM()), examples, row_examples=8)
    config = Config(
        model=EncoderConfig(max_positions=PACKING_T // 4), tasks={"task": task}, stages=(Stage(seq_len=PACKING_T),)
    )
    batch = all_rows(Feeds(config, store).train["task", PACKING_T])
    assert batch["positions_BT"].max() < PACKING_T // 4 == examples.longest(PACKING_T)
    assert np.mean((batch["examples_BT"] > 0).sum(axis=1)) > PACKING_T // 2
    full = all_rows(feed_of_of_packing(store, kind, 8))
    assert full["positions_BT"].max() >= PACKING_T // 4


@pytest.mark.parametrize("kind", ["segment_pairs", "sentence_structure"])
def test_examples_of_a_row_do_not_affect_each_other(store, encoder, kind):
    """Bit for bit; that the gradients are zero too is a test of the encoder."""
    batch = all_rows(feed_of_of_packing(store, kind, 8))
    fullest = np.argmax((batch["example_ids_BN"] >= 0).sum(axis=1))
    row = {name: values[fullest : fullest + 1] for name, values in batch.items()}
    second_T = row["examples_BT"][0] == 2
    assert second_T.any()
    places = (row["segments_BT"], row["positions_BT"], row["examples_BT"], row["summary_positions_BN"])
    module = Encoder(encoder)
    params, apply = jax.jit(module.init)(jax.random.key(0), row["tokens_BT"]), jax.jit(module.apply)
    others = np.where(second_T, (row["tokens_BT"] + 11) % encoder.vocab_size, row["tokens_BT"])
    before_TD, after_TD = (apply(params, tokens, *places).hidden[0] for tokens in (row["tokens_BT"], others))
    assert (before_TD[second_T] != after_TD[second_T]).any(axis=-1).all()
    np.testing.assert_array_equal(before_TD[~second_T], after_TD[~second_T])
