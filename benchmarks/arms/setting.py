"""The model that every arm trains, and its batch. Needs only numpy, so that every arm's interpreter can import it."""

import dataclasses

import numpy as np

# Lower ids are special symbols, which are neither sampled nor predicted.
_FIRST_WORD = 7
# Arms that only multiply matrices have this number of products, [rows, width] x [width, width], of about 4096 rows each
# with the tiny model.
PRODUCTS, PRODUCT_WIDTH = 16, 1024


@dataclasses.dataclass(frozen=True)
class Setting:
    """An encoder trained by AdamW on full rows: BERT with both heads, or a preset of bertjax with masked tokens alone.

    The defaults are bertjax's preset `tiny`.

    Attributes:
      preset: an architecture in `bertjax.models.presets`, whose sizes the other fields repeat; empty for BERT.
      layers: L.
      width: D.
      heads: H.
      feedforward: F.
      max_positions: rows of the position table.
      vocab_size: V.
      batch: B.
      seq_len: T; every row is full.
      examples: N, examples of equal length that share a row, if the arm can separate them.
      predicted: K, predicted positions in a row.
      dropout: rate, everywhere but on attention.
      attention_dropout: rate on attention probabilities.
      learning_rate: constant.
      weight_decay: decoupled.
      clip_norm: of the gradient, global.
    """

    preset: str = ""
    layers: int = 3
    width: int = 256
    heads: int = 4
    feedforward: int = 1024
    max_positions: int = 512
    vocab_size: int = 8000
    batch: int = 64
    seq_len: int = 128
    examples: int = 1
    predicted: int = 20
    dropout: float = 0.1
    attention_dropout: float = 0.1
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    @property
    def tokens(self) -> int:
        """Number of real tokens in a step."""
        return self.batch * self.seq_len

    @property
    def length(self) -> int:
        """Number of tokens in an example."""
        return self.seq_len // self.examples

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the batch that every arm repeats.

        Returns:
          int64 `tokens_BT`, `segments_BT`, `predicted_BK` (columns, ascending), `labels_BK`, and `is_random_BN`.
        """
        draw = np.random.default_rng(0)
        columns_BT = np.broadcast_to(np.arange(self.seq_len), (self.batch, self.seq_len))
        return {
            "tokens_BT": draw.integers(_FIRST_WORD, self.vocab_size, columns_BT.shape),
            "segments_BT": (columns_BT % self.length >= self.length // 2).astype(np.int64),
            "predicted_BK": np.sort(draw.permuted(columns_BT, axis=1)[:, : self.predicted], axis=1),
            "labels_BK": draw.integers(_FIRST_WORD, self.vocab_size, (self.batch, self.predicted)),
            "is_random_BN": draw.integers(0, 2, (self.batch, self.examples)),
        }

    def labels_BT(self, absent: int) -> np.ndarray:
        """Return int64 labels as in transformers: labels at predicted positions, `absent` elsewhere."""
        inputs = self.inputs()
        labels_BT = np.full((self.batch, self.seq_len), absent)
        np.put_along_axis(labels_BT, inputs["predicted_BK"], inputs["labels_BK"], axis=1)
        return labels_BT
