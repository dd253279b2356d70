"""Causal language modeling: what a token sees, what it predicts, and that everything that opens the model knows it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.models import replacing
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder
from bertjax.objectives.pretraining.causal import CausalLM
from bertjax.objectives.pretraining.permutation import PermutationLM
from bertjax.runtime.errors import UserError
from bertjax.training.parallel.attention import choose_attention
from tests import batches
from tests.interop import models
from tests.objectives import groups

T = 16
ENCODER = dataclasses.replace(batches.ENCODER, direction="left_to_right", init_stddev=0.5)
OBJECTIVE = CausalLM()


def packed() -> dict[str, np.ndarray]:
    """One row with examples of 5, 4 and 3 tokens and padding."""
    inputs = groups.examples([5, 4, 3], labels={})
    batch = groups.batch_of(OBJECTIVE, inputs, [[0, 1, 2]])
    return {name: array[:, :T] if name.endswith(("_BT", "_BK")) else array for name, array in batch.items()}


def params_of(encoder: EncoderConfig, batch: dict) -> dict:
    return batches.filled(batches.param_shapes(OBJECTIVE, encoder, batch))


@pytest.mark.parametrize(
    "changes", [{}, batches.LOCAL, batches.ROTARY | {"sharing": "all"}], ids=["bert", "window", "rotary"]
)
def test_no_logits_depend_on_later_tokens_or_other_examples(changes):
    """Derivatives by the embedding of every token."""
    encoder = dataclasses.replace(ENCODER, **changes)
    batch = packed() | {"positions_BT": np.arange(T, dtype=np.int32)[None]}
    model, params = OBJECTIVE.model(encoder), params_of(encoder, batch)

    def logits_T(embedded_TD):
        with replacing.with_embeddings(embedded_TD[None]):
            logits_BTV = OBJECTIVE.apply(model, params, batch)[..., : encoder.vocab_size]
        return jnp.einsum("btv,v->t", logits_BTV, jnp.sin(jnp.arange(encoder.vocab_size)))

    embedded_TD = np.random.default_rng(1).normal(size=(T, encoder.width)).astype(np.float32)
    derivatives_TT = jnp.abs(jax.jit(jax.jacrev(logits_T))(embedded_TD)).sum(axis=-1)
    [examples_T] = batch["examples_BT"]
    columns = np.arange(T)
    sees_TT = (columns[:, None] >= columns) & (examples_T[:, None] == examples_T)
    assert not np.any(np.asarray(derivatives_TT)[~sees_TT])
    if encoder.block.global_every == 1:
        assert np.all(np.asarray(derivatives_TT)[sees_TT & (examples_T > 0)] > 0)


def test_each_token_predicts_the_next_one_of_its_example():
    batch = packed()
    [tokens], [examples], [labels], [weights] = (
        batch[name] for name in ("tokens_BT", "examples_BT", "clm_labels_BK", "clm_weights_BK")
    )
    special = {tokens[0], tokens[4]}  # [CLS], [SEP]
    for t in range(T):
        is_next = t + 1 < T and examples[t] == examples[t + 1] > 0 and tokens[t + 1] not in special
        assert weights[t] == is_next and labels[t] == (tokens[t + 1] if is_next else 0)
    assert weights.sum() == 3 + 2 + 1
    assert float(OBJECTIVE.weights(batch)["clm"]) == 6


def test_the_loss_is_the_mean_of_log_probabilities():
    batch = packed()
    model, params = OBJECTIVE.model(ENCODER), params_of(ENCODER, batch)
    sums, metrics = OBJECTIVE.terms(model, params, None, batch, None, False)
    [log_TV] = jax.nn.log_softmax(OBJECTIVE.apply(model, params, batch))
    expected = sum(-log_TV[t, batch["clm_labels_BK"][0, t]] for t in np.flatnonzero(batch["clm_weights_BK"][0]))
    np.testing.assert_allclose(sums["clm"], expected, rtol=1e-5)
    assert metrics["clm_accuracy"][1] == 6


@pytest.mark.slow
@pytest.mark.parametrize("read_BK", [None, np.array([[1, 7]])])
def test_the_last_token_of_an_example_is_its_summary(read_BK):
    """[CLS] sees only itself; whatever the batch says about it, a reader of pooled states learns of the whole text."""
    batch = packed()
    params = params_of(ENCODER, batch)["encoder"]
    names = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")
    encoded = Encoder(ENCODER).apply({"params": params}, *(batch[name] for name in names), read_BK=read_BK)
    every = Encoder(ENCODER).apply({"params": params}, *(batch[name] for name in names)).hidden
    pooler = params["pooler"]
    expected = jnp.tanh(every[0, jnp.array([4, 8, 11])] @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(encoded.pooled_BND[0, :3], expected, atol=1e-5)


@pytest.fixture(scope="module")
def causal() -> Export:
    """An export with letters for tokens."""
    tokens = models.trained()
    config = from_dict(
        {
            "model": {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 40}
            | {"direction": "left_to_right"},
            "tasks": {"causal": {"objective": {"kind": "causal"}, "examples": {"kind": "full_sentences"}}},
            "stages": [{"seq_len": 40}],
        }
    )
    encoder = config.encoder(tokens.vocab_size, "cpu")
    params = batches.filled(batches.param_shapes(OBJECTIVE, encoder, packed()))
    return Export(to_dict(config), encoder, params, tokens, {})


def test_a_loaded_encoder_reads_from_left_to_right(causal, tmp_path):
    export.write(tmp_path, causal)
    module, params, _ = bertjax.load(tmp_path)
    tokens_BT = np.arange(7, 17)[None]
    changed_BT = np.where(np.arange(10) == 6, 8, tokens_BT)
    before, after = (module.apply({"params": params}, batch).hidden for batch in (tokens_BT, changed_BT))
    np.testing.assert_array_equal(before[:, :6], after[:, :6])
    assert np.abs(before[:, 6:] - after[:, 6:]).min(axis=-1).max() > 1e-4


def test_what_cannot_read_in_this_order_is_refused():
    with pytest.raises(UserError, match="^objective.kind=causal .* set model.direction=left_to_right"):
        OBJECTIVE.heads(batches.ENCODER)
    with pytest.raises(UserError, match="^objective.kind=permutation .* set model.direction=bidirectional"):
        PermutationLM().heads(dataclasses.replace(ENCODER, **batches.RELATIVE))
    with pytest.raises(UserError, match="^model.direction='left' is unknown; choose one of bidirectional, left_to_r"):
        EncoderConfig(direction="left")
    message = r"attention=splash does not compute an order of tokens \(model.direction\); use "
    with pytest.raises(UserError, match=f"^runtime.{message}"):
        choose_attention("splash", ENCODER, "tpu", "TPU v4")
    assert choose_attention("auto", ENCODER, "tpu", "TPU v4") == "plain"
    encoder = dataclasses.replace(ENCODER, max_positions=256, execution=Execution(attention="splash"))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(Encoder(encoder).init, jax.random.key(0), jnp.zeros((1, 256), jnp.int32))
    relative = Encoder(dataclasses.replace(ENCODER, **batches.RELATIVE))
    with pytest.raises(ValueError, match="rank_BT is an order of its own"):
        zeros = jnp.zeros((1, 4), jnp.int32)
        jax.eval_shape(lambda: relative.init(jax.random.key(0), zeros, rank_BT=zeros, read_BK=zeros))
