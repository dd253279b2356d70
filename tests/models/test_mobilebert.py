"""The parts of MobileBERT and of its teacher: bottlenecks, stacked feed-forward networks, NoNorm, trigrams.

Outputs are compared with transformers in tests/interop/test_parity.py.
"""

import functools

import jax
import pytest

from bertjax.models.encoder import Encoder
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.electra import Electra
from bertjax.runtime.errors import UserError

NARROW = {
    "vocab_size": 100,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "feedforward": 24,
    "max_positions": 16,
    "embeddings.width": 8,
}
MOBILE = PRESETS["mobilebert"].replace(NARROW | {"block.inner_width": 8, "block.feedforwards": 2})
TINY = PRESETS["mobilebert_tiny"].replace(NARROW | {"block.inner_width": 8})
TEACHER = PRESETS["ib_bert_large"].replace(NARROW | {"block.inner_width": 32})
ALL = pytest.mark.parametrize("config", [MOBILE, TINY, TEACHER], ids=["mobile", "tiny", "teacher"])


@functools.partial(jax.jit, static_argnames="config")
def encode(config, params, tokens_BT, **inputs):
    return Encoder(config).apply({"params": params}, tokens_BT, **inputs)


def test_a_generator_cannot_share_embeddings_that_are_as_wide_as_the_encoder():
    with pytest.raises(UserError, match="^objective.kind=electra shares embeddings .* set it to bert$"):
        Electra().generator(MOBILE)
