"""One root for every objective: paths of its parameters, heads as data, plain functions of the bound model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.models.bert import BertEmbeddings
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.models.label_heads import DetectionHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from tests import batches

BATCH = batches.make()
CORE = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")
GENERATOR = dataclasses.replace(batches.ENCODER, embeddings=BertEmbeddings(16), width=8, heads=1)


class MaskedLMAndNextSentence:
    """A minimal objective: heads, and a plain function of the bound model."""

    heads = {"mlm": HeadSpec(MaskedLMHead), "nsp": HeadSpec(PairHead, {"classes": 2})}

    def logits(self, model, batch, key=None):
        encoded = model.encode(batch, key, batch["mlm_positions_BK"])
        return model.head("mlm", encoded.hidden, model.word_VE), model.head("nsp", encoded.pooled_BND)


class ReplacedTokens:
    heads = {"mlm": HeadSpec(MaskedLMHead, on_generator=True), "rtd": HeadSpec(DetectionHead)}

    def logits(self, model, batch, key=None):
        guessed = model.encode_by_generator(batch, key, batch["mlm_positions_BK"]).hidden
        return model.head("mlm", guessed, model.word_VE), model.head("rtd", model.encode(batch, key).hidden)


def shapes_of(model, objective):
    create = lambda key: model.lazy_init(key, BATCH, method=objective.logits)["params"]  # noqa: E731
    return jax.eval_shape(create, jax.random.key(0))


@pytest.mark.slow
def test_an_objective_computes_with_a_function_of_the_bound_model():
    objective = MaskedLMAndNextSentence()
    model = Model(batches.ENCODER, objective.heads)
    params = batches.filled(shapes_of(model, objective))
    logits_BKV, logits_BNC = model.apply({"params": params}, BATCH, method=objective.logits)
    core = [BATCH[name] for name in CORE]
    encoded = Encoder(batches.ENCODER).apply({"params": params["encoder"]}, *core, read_BK=BATCH["mlm_positions_BK"])
    word_VE, heads = params["encoder"]["embeddings"]["word"], params["heads"]
    expected_BKV = MaskedLMHead(batches.ENCODER).apply({"params": heads["mlm"]}, encoded.hidden, word_VE)
    expected_BNC = PairHead(batches.ENCODER).apply({"params": heads["nsp"]}, encoded.pooled_BND)
    np.testing.assert_array_equal(logits_BKV, expected_BKV)
    np.testing.assert_array_equal(logits_BNC, expected_BNC)


@pytest.mark.slow
def test_the_key_of_a_batch_is_that_of_dropout():
    objective = MaskedLMAndNextSentence()
    model = Model(dataclasses.replace(batches.ENCODER, dropout=0.5), objective.heads)
    params = batches.filled(shapes_of(model, objective))
    one, two, none = (
        np.asarray(model.apply({"params": params}, BATCH, key, method=objective.logits)[1])
        for key in (jax.random.key(1), jax.random.key(2), None)
    )
    assert (one != two).any() and (one != none).any()


def test_paths_of_parameters():
    objective = ReplacedTokens()
    model = Model(batches.ENCODER, objective.heads, GENERATOR)
    shapes = flatten_dict(shapes_of(model, objective), sep="/")
    assert {path.split("/")[0] for path in shapes} == {"encoder", "generator", "heads"}
    assert {path.split("/")[1] for path in shapes if path.startswith("heads/")} == {"mlm", "rtd"}
    assert not [path for path in shapes if path.startswith("generator/encoder/embeddings")]
    assert shapes["heads/mlm/transform/kernel"].shape == (8, 16)
    assert shapes["heads/rtd/transform/kernel"].shape == (16, 16)
    assert shapes["generator/encoder/layers/output/kernel"].shape == (3, 32, 8)


@pytest.mark.slow
def test_initial_values_are_those_of_the_paths():
    """A part has the same initial values in every objective: Flax derives its key from its path."""
    objectives = MaskedLMAndNextSentence(), ReplacedTokens()
    first, second = (
        flatten_dict(
            jax.jit(lambda key, o=o: Model(batches.ENCODER, o.heads, GENERATOR).init(key, BATCH, method=o.logits))(
                jax.random.key(0)
            )["params"],
            sep="/",
        )
        for o in objectives
    )
    shared = [path for path in first.keys() & second.keys() if path.startswith("encoder/")]
    assert "encoder/layers/intermediate/kernel" in shared
    for path in shared:
        np.testing.assert_array_equal(first[path], second[path], err_msg=path)


def test_a_head_of_another_dtype():
    config = dataclasses.replace(
        batches.ENCODER, execution=dataclasses.replace(batches.ENCODER.execution, dtype="bfloat16")
    )
    heads = {"exact": HeadSpec(Dense, {"features": 3, "dtype": "float32"}), "tag": HeadSpec(Dense, {"features": 3})}

    def logits(model, batch, key=None):
        hidden_BTD = model.encode(batch, key).hidden
        return {name: model.head(name, hidden_BTD) for name in heads}

    model = Model(config, heads)
    dtypes = jax.eval_shape(lambda key: model.init_with_output(key, BATCH, method=logits)[0], jax.random.key(0))
    assert (dtypes["exact"].dtype, dtypes["tag"].dtype) == (jnp.float32, jnp.bfloat16)


def test_a_model_without_a_generator_names_it():
    objective = ReplacedTokens()
    with pytest.raises(ValueError, match="^this model has no generator; build it with Model\\(..., generator=...\\)"):
        shapes_of(Model(batches.ENCODER, {"rtd": HeadSpec(DetectionHead)}), objective)
