"""Small encoders and hand-made batches, for tests that need no corpus."""

import numpy as np

from bertjax.models.bert import BertEmbeddings
from bertjax.models.blocks.deberta import DebertaBlock
from bertjax.models.blocks.llama import LlamaBlock, WordEmbeddings
from bertjax.models.blocks.lstm import LSTMBlock
from bertjax.models.blocks.modern import ModernBlock
from bertjax.models.blocks.xlnet import XLNetBlock, XLNetEmbeddings
from bertjax.models.config import EncoderConfig

ENCODER = EncoderConfig(
    vocab_size=100, layers=3, width=16, heads=2, feedforward=32, max_positions=16, dropout=0.0, attention_dropout=0.0
)
# Settings of other layer types.
ROTARY = {"block": ModernBlock(window=0, global_every=1), "embeddings": BertEmbeddings(positions="none")}
LOCAL = {"block": ModernBlock(window=2, global_every=2), "embeddings": BertEmbeddings(positions="none")}
GROUPED = {"block": LlamaBlock(key_value_heads=1), "embeddings": WordEmbeddings()}
RELATIVE = {"block": XLNetBlock(), "embeddings": XLNetEmbeddings()}
DISENTANGLED = {"block": DebertaBlock(buckets=4, max_distance=10), "embeddings": BertEmbeddings(positions="none")}
LSTM = {"block": LSTMBlock(), "embeddings": BertEmbeddings(positions="none")}


def make(rows: int = 8, seq_len: int = 16, predicted: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of the contract, one example a row: lengths, segments, predictions and weights all differ."""
    draw = np.random.default_rng(seed)
    columns = np.arange(seq_len)
    lengths_B1 = draw.integers(seq_len // 2, seq_len + 1, (rows, 1))
    real_BT = columns < lengths_B1
    tokens_BT = np.where(real_BT, draw.integers(7, ENCODER.vocab_size, (rows, seq_len)), 0)
    positions_BK = np.sort([draw.permutation(seq_len // 2)[:predicted] for _ in range(rows)], axis=1)
    return {
        "tokens_BT": tokens_BT.astype(np.int32),
        "segments_BT": ((columns >= lengths_B1 // 2) & real_BT).astype(np.int32),
        "positions_BT": np.where(real_BT, columns, 0).astype(np.int32),
        "examples_BT": real_BT.astype(np.int32),
        "example_ids_BN": np.arange(rows, dtype=np.int32)[:, None],
        "summary_positions_BN": np.zeros((rows, 1), np.int32),
        "mlm_positions_BK": positions_BK.astype(np.int32),
        "mlm_labels_BK": draw.integers(7, ENCODER.vocab_size, positions_BK.shape).astype(np.int32),
        "mlm_weights_BK": (np.arange(predicted) < draw.integers(1, predicted + 1, (rows, 1))).astype(np.float32),
        "mlm_dropped_B": np.zeros(rows, np.int32),
        "nsp_labels_BN": draw.integers(0, 2, (rows, 1)).astype(np.int32),
        "nsp_weights_BN": np.ones((rows, 1), np.float32),
    }


def filled(shapes, scale: float = 0.3):
    """Return a tree of arrays of these shapes; the values depend only on path and place, and all of them differ."""
    import jax

    def fill(key_path, leaf):
        phase = sum(map(ord, jax.tree_util.keystr(key_path)))
        center = 1.0 if "scale" in str(key_path[-1]) else 0.0
        return (center + scale * np.sin(phase + 1.7 * np.arange(leaf.size)).reshape(leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def assert_equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same arrays under the same names."""
    assert batch.keys() == expected.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


def param_shapes(objective, encoder, batch=None):
    """The shapes of the params of an objective's model."""
    import jax

    batch = make(1) if batch is None else batch
    return jax.eval_shape(lambda key: objective.init(objective.model(encoder), key, batch), jax.random.key(0))
