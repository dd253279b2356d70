"""Text embeddings: the mean over a text's hidden states, [CLS] and [SEP] included, or one vector per token.

The mean is Sentence-BERT's MEAN strategy (Reimers & Gurevych, 2019, section 3, arXiv 1908.10084). Several layers are
concatenated, as in BERT's feature-based approach (Devlin et al., 2019, section 5.3, table 7).
"""

import dataclasses
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np

from bertjax.data.labeled.base import LabeledExamples, Record
from bertjax.inference.base import Pipeline
from bertjax.models import taps
from bertjax.models.encoder import Encoder
from bertjax.models.mixing import all_layers
from bertjax.models.pooling import l2_normalize, mean_of_examples
from bertjax.objectives.finetuning.answers import EmbeddingAnswers, numbers_of
from bertjax.objectives.host import Output
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Embed(Pipeline):
    """One vector per text, or one per token.

    Attributes:
      normalize: whether vectors have length 1, so that dot products are cosines; None if the model's embeddings have.
      layers: layers whose states are concatenated: 0 for the embeddings, L for the output; only the output if empty.
      per_token: whether to return one vector per token, including [CLS] and [SEP].
    """

    normalize: bool | None = None
    layers: tuple[int, ...] = ()
    per_token: bool = False
    is_readable: ClassVar[bool] = False

    def __post_init__(self):
        last = self.model.encoder.layers
        if unknown := [layer for layer in self.layers if not 0 <= layer <= last]:
            named = ",".join(map(str, self.layers))
            raise UserError(
                f"layers={named}: the model has no layer {unknown[0]}; choose from 0 (embeddings) to {last}"
            )

    @property
    def array(self) -> str:
        return "" if self.per_token else "embedding"

    def encode(self, records: list[Record]) -> LabeledExamples:
        encoded = self.model.tokenizer.encode([record["text"] for record in records])
        return self.add_special_tokens(records, encoded)

    def outputs(self, params, batch):
        """`embedding`, float32 [B, 1, D], or [B, T, D] per token; D is multiplied by the number of layers."""
        names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT")
        # Hidden states are captured only if a layer is named: capturing keeps L + 1 activations in memory.
        captures = {taps.CAPTURED: {"hidden": None}} if self.layers else {}
        encoded, state = Encoder(self.model.encoder).apply(
            {"params": params["encoder"]} | captures, *(batch[name] for name in names), mutable=list(captures)
        )
        hidden_BTD = encoded.hidden
        if self.layers:
            # The captured last layer lacks the final norm of a pre-norm encoder; `all_layers` replaces it by the
            # output.
            hidden_LBTD = all_layers(cast(Any, state[taps.CAPTURED]["hidden"]), encoded.hidden)
            hidden_BTD = jnp.concatenate([hidden_LBTD[layer] for layer in self.layers], axis=-1)
        vectors = hidden_BTD.astype(jnp.float32)
        if not self.per_token:
            vectors = mean_of_examples(hidden_BTD, batch["examples_BT"], slots=1)
        # The model's own embeddings are those of texts, from the last layer.
        own = self.model.is_normalized and not (self.layers or self.per_token)
        vectors = l2_normalize(vectors) if (own if self.normalize is None else self.normalize) else vectors
        return {"embedding": Output(vectors, per="token" if self.per_token else "example")}

    def predictions(self, outputs, examples) -> list[dict[str, Any]]:
        """{`embedding`: D numbers, each the shortest decimal with the same float32 value}.

        With `per_token`: {`pieces`: the tokens, `embeddings`: D numbers for each token}.
        """
        if not self.per_token:
            return EmbeddingAnswers().predictions(outputs)
        vectors = np.split(outputs["embedding"], np.cumsum(examples.lengths())[:-1])
        return [
            {
                "pieces": [self.model.tokenizer.piece(int(token)) for token in ids],
                "embeddings": [*map(numbers_of, rows)],
            }
            for ids, rows in zip(examples.ragged.token_lists(), vectors, strict=True)
        ]
