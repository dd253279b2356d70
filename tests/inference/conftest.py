"""A model whose parameters all differ, and texts for it, so that nothing has to be trained."""

import itertools

import jax
import numpy as np
import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.inference.predictor import Predictor
from bertjax.models import vocabulary
from bertjax.training.shapes import batch_shapes
from tests import batches

LONGEST = 80
WORDS = list(map("".join, itertools.product("abc", "def", "abf", "cde")))


@pytest.fixture(scope="session")
def model() -> Export:
    """Encoder, masked-LM and next-sentence heads, WordPiece on words of the letters a to f."""
    tokens = tokenizer.train([" ".join(WORDS)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=60))
    config = from_dict(
        {
            "model": {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": LONGEST},
            "stages": [{"seq_len": LONGEST}],
        }
    )
    encoder = config.encoder(tokens.vocab_size, "cpu")
    module = config.task.objective.model(encoder)
    batch = batch_shapes(config.task, tokens.vocab_size, LONGEST)
    shapes = jax.eval_shape(lambda key: config.task.objective.init(module, key, batch), jax.random.key(0))
    # As if read from a file: what pads the vocabulary is zero.
    params = vocabulary.pad(vocabulary.cut(batches.filled(shapes), encoder), encoder)
    return Export(to_dict(config), encoder, params, tokens, {})


@pytest.fixture(scope="session")
def predictor(model) -> Predictor:
    return Predictor(model)


@pytest.fixture(scope="session")
def encoder_alone(model) -> Predictor:
    """The same without heads."""
    return Predictor(model._replace(params={"encoder": model.params["encoder"]}))


def sentences(count: int, most_words: int, seed: int = 0) -> list[str]:
    """Sentences of one to `most_words` words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, most_words + 1))) for _ in range(count)]
