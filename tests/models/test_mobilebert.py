"""The parts of MobileBERT and of its teacher: bottlenecks, stacked feed-forward networks, NoNorm, trigrams.

Outputs are compared with transformers in tests/interop/test_parity.py.
"""

import pytest

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


def test_a_generator_cannot_share_embeddings_that_are_as_wide_as_the_encoder():
    with pytest.raises(UserError, match="^objective.kind=electra shares embeddings .* set it to bert$"):
        Electra().generator(MOBILE)
