"""MPNet's distance biases, its streams with position compensation, and which tokens each state depends on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import cut
from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.mpnet import MPNetBlock, bucket_of
from bertjax.models.compensation import CompensatedStreams
from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from bertjax.training.parallel.sharding import ENCODER_RULES, spec_of
from bertjax.training.param_paths import path_of
from tests.models.encoding import encode, params_of

# Buckets widen from distance 2 on, and end at 6.
CONFIG = dataclasses.replace(
    PRESETS["mpnet_base"], vocab_size=60, layers=3, width=16, heads=2, feedforward=24, max_positions=16,
    block=MPNetBlock(buckets=8, max_distance=6),
)  # fmt: skip
# Two examples of 7 and 6 tokens. [MASK] is 5; the predicted tokens are 30 and more.
MASK = 5
BATCH = {
    "tokens_BT": np.array([[10, 11, MASK, 12, MASK, MASK, 13, 14, MASK, 15, MASK, 16, 17, 0]]),
    "positions_BT": np.array([[*range(7), *range(6), 0]]),
    "examples_BT": np.array([[1] * 7 + [2] * 6 + [0]]),
    "summary_positions_BN": np.array([[0, 7]]),
}
READ_BK = np.array([[2, 4, 5, 8, 10, 0]])  # the last place is empty
ANSWERS_BK = np.array([[30, 31, 32, 33, 34, -1]])
RANK_BT = np.array([[0, 0, 2, 0, 3, 1, 0, 0, 1, 0, 2, 0, 0, 0]])
RANK_BK = RANK_BT[0, READ_BK[0]]


def predict(params, batch=BATCH, config=CONFIG, **others):
    return encode(config, params, batch, read_BK=READ_BK, rank_BT=RANK_BT, answers_BK=ANSWERS_BK, **others).hidden[0]


def test_near_distances_have_a_bucket_each_and_far_ones_share_the_last():
    assert bucket_of(np.arange(8), 8, 6).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert bucket_of(-np.arange(1, 8), 8, 6).tolist() == [5, 6, 6, 7, 7, 7, 7]


def test_attention_has_the_bias_of_each_distance_in_every_layer():
    """The other parameters of attention are zero, so that only biases are left in the softmax."""
    params = params_of(CONFIG)
    attention = params["layers"]["attention"]
    silent = attention | {name: jax.tree.map(np.zeros_like, attention[name]) for name in ("query", "key")}
    params = params | {"layers": params["layers"] | {"attention": silent}}
    _, state = Encoder(CONFIG).apply({"params": params}, np.arange(10, 22)[None], mutable=["captured"])
    distances_TT = np.subtract.outer(np.arange(12), np.arange(12))
    expected_HTT = np.exp(np.moveaxis(params["shared"]["bias"][bucket_of(distances_TT, 8, 6)], -1, 0))
    expected_HTT /= expected_HTT.sum(axis=-1, keepdims=True)
    assert expected_HTT.std() > 0.01
    for attention_BHTT in state["captured"]["attention"]:
        np.testing.assert_allclose(attention_BHTT[0], expected_HTT, rtol=1e-5)


def dependence(table: str, rows: np.ndarray, batch=BATCH) -> np.ndarray:
    """Return which rows of an embedding table each of the K query states depends on; bool [K, rows]."""
    params = params_of(CONFIG)

    def of_table(values):
        changed = params | {"embeddings": params["embeddings"] | {table: values}}
        return jnp.sum(jnp.sin(3 * predict(changed, batch)), axis=-1)

    jacobian_KNE = jax.jit(jax.jacrev(of_table))(jnp.asarray(params["embeddings"][table]))
    return np.abs(np.asarray(jacobian_KNE))[:, rows].max(axis=-1) > 0


def distinct() -> dict:
    """Return the batch with a symbol of its own in the place of each predicted token: 40 + its column."""
    tokens_BT = np.where(RANK_BT > 0, 40 + np.arange(14), BATCH["tokens_BT"])
    return BATCH | {"tokens_BT": tokens_BT}


EXAMPLES = np.array([1, 1, 1, 2, 2])  # of the five predicted tokens


def test_a_query_sees_predicted_tokens_before_it_and_symbols_of_itself_and_those_after_it():
    """Through three layers, so that content states do not leak a token either."""
    same = EXAMPLES[:, None] == EXAMPLES
    ranks = RANK_BK[:5]
    answers = dependence("word", ANSWERS_BK[0, :5], distinct())[:5]
    np.testing.assert_array_equal(answers, same & (ranks < ranks[:, None]))
    symbols = dependence("word", 40 + READ_BK[0, :5], distinct())[:5]
    # A symbol is hidden from predictions after it. Those read other symbols, which read it.
    np.testing.assert_array_equal(symbols, same)


def test_in_one_layer_each_position_is_seen_once():
    """Its token or the symbol in its place: this is the compensation, and what XLNet lacks."""
    streams = CompensatedStreams(READ_BK, RANK_BT, ANSWERS_BK >= 0)
    states_BSD = np.zeros((1, 14 + 12, 2))
    content = np.concatenate([np.arange(14), READ_BK[0]])  # columns of content states
    for is_last in (False, True):
        queries = streams.queries(states_BSD, is_last)
        visible_QS = np.asarray(
            streams.visibility(BATCH["examples_BT"]).mask_BQT(queries.columns_BQ, queries.rank_BQ)[0]
        )
        assert visible_QS.shape == (6 if is_last else 26, 20)
        for query, column in enumerate(np.asarray(queries.columns_BQ)[0]):
            if query in ((5,) if is_last else (19, 25)):
                continue  # the empty place
            example = BATCH["examples_BT"][0, column]
            seen = np.sort(content[visible_QS[query]])
            expected = np.flatnonzero(BATCH["examples_BT"][0] == example)
            if example:
                np.testing.assert_array_equal(seen, expected, err_msg=f"{query} in {column}")
        assert not visible_QS[:, 19][: 5 if is_last else 13].any(), "the empty place is seen by no text"


def test_positions_of_all_tokens_are_seen():
    positions = dependence("position", 2 + np.arange(7))[:5]
    assert positions[:3].all() and positions[3:, :6].all() and not positions[3:, 6].any()


def test_the_row_is_read_as_in_masked_language_modeling():
    """With a single predicted token in an example, nothing is before it: its prediction is that of a plain encoder."""
    tokens_BT = np.where(np.isin(np.arange(14), [2, 8]), MASK, np.arange(10, 24))[None]
    batch, read_BK = BATCH | {"tokens_BT": tokens_BT}, np.array([[2, 8]])
    rank_BT = np.isin(np.arange(14), [2, 8]).astype(int)[None]
    params = params_of(CONFIG)
    inputs = {"read_BK": read_BK, "rank_BT": rank_BT, "answers_BK": np.array([[30, 31]])}
    permuted, plain = encode(CONFIG, params, batch, **inputs), encode(CONFIG, params, batch)
    np.testing.assert_allclose(permuted.hidden[0], plain.hidden[0, read_BK[0]], rtol=1e-4, atol=1e-5)


def test_the_last_prediction_is_that_of_a_row_in_which_the_others_are_known():
    """The streams equal plain attention on the text that a prediction sees, if the model has one layer."""
    config = dataclasses.replace(CONFIG, layers=1)
    params = params_of(config)
    predicted = predict(params, config=config)
    for place in range(5):
        column, tokens_BT = READ_BK[0, place], BATCH["tokens_BT"].copy()
        for other in range(5):
            if EXAMPLES[other] == EXAMPLES[place] and RANK_BK[other] < RANK_BK[place]:
                tokens_BT[0, READ_BK[0, other]] = ANSWERS_BK[0, other]
        plain = encode(config, params, BATCH | {"tokens_BT": tokens_BT}).hidden[0, column]
        np.testing.assert_allclose(predicted[place], plain, rtol=1e-4, atol=1e-5)


def test_dropout_needs_its_key_and_changes_predictions():
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.1)
    params = params_of(CONFIG)
    first, again, other = (predict(params, config=config, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_every_parameter_has_a_rule_and_layers_share_one_table():
    leaves = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params_of(CONFIG))}
    assert leaves["shared/bias"].shape == (8, 2)
    for path, leaf in leaves.items():
        spec_of(f"encoder/{path}", leaf, ENCODER_RULES)


def test_heads_are_not_cut_since_all_layers_share_their_biases():
    with pytest.raises(ValueError, match="model.block.kind=mpnet has parameters of heads that all layers share"):
        cut.heads(params_of(CONFIG), CONFIG, np.zeros((3, 1), int))


def test_predicted_tokens_need_their_order_and_an_encoder_that_reads_them():
    other = PRESETS["roberta_base"].replace({"vocab_size": 60, "max_positions": 16})
    small = dataclasses.replace(other, layers=1, width=16, heads=2, feedforward=24)
    for config, inputs in (
        (CONFIG, {"read_BK": READ_BK}),
        (CONFIG, {"rank_BT": RANK_BT}),
        (small, {"read_BK": READ_BK, "rank_BT": RANK_BT}),
    ):
        with pytest.raises(ValueError, match="^answers_BK needs read_BK, rank_BT and model.block.kind=mpnet; pass and"):
            encode(config, params_of(config), BATCH, answers_BK=ANSWERS_BK, **inputs)
    with pytest.raises(ValueError, match="rank_BT needs read_BK"):
        encode(CONFIG, params_of(CONFIG), BATCH, read_BK=READ_BK, rank_BT=RANK_BT)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"block": MPNetBlock(buckets=6)}, "model.block.buckets=6 must be a multiple of 4: half of them"),
        (
            {"block": MPNetBlock(max_distance=8)},
            "model.block.max_distance=8 must exceed 8, the distances with a bucket",
        ),
        ({"embeddings": BertEmbeddings(positions="none")}, "model.block.kind=mpnet reads token order only from the"),
        ({"width": 15}, "model.width=15 is not divisible by model.heads=2"),
    ],
)
def test_invalid_parts(fields, message):
    with pytest.raises(UserError, match=f"^{message}"):
        dataclasses.replace(CONFIG, **fields)
