"""transformers' `FlaxBertForPreTraining` (4.57.6 is the last release that has it) with optax, jitted and donated.

Like the PyTorch model it computes the vocabulary product at all T positions.
"""

import argparse
import functools
import json
from collections.abc import Callable

from benchmarks.arms import worker
from benchmarks.arms.setting import Setting


def build(setting: Setting) -> Callable[[], float]:
    """Return a function that trains one step on the setting's batch and returns the loss.

    Raises:
      ModuleNotFoundError: JAX, Flax, optax or a transformers that has Flax models is not installed.
    """
    import jax
    import jax.numpy as jnp
    import optax
    import transformers

    if not hasattr(transformers, "FlaxBertForPreTraining"):
        raise ModuleNotFoundError("no Flax models", name="transformers==4.57.6")
    config = transformers.BertConfig(
        vocab_size=setting.vocab_size,
        hidden_size=setting.width,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        intermediate_size=setting.feedforward,
        max_position_embeddings=setting.max_positions,
        hidden_dropout_prob=setting.dropout,
        attention_probs_dropout_prob=setting.attention_dropout,
    )
    model = transformers.FlaxBertForPreTraining(config, input_shape=(1, setting.seq_len))
    optimizer = optax.chain(
        optax.clip_by_global_norm(setting.clip_norm),
        optax.adamw(setting.learning_rate, eps=1e-6, weight_decay=setting.weight_decay),
    )
    inputs = {name: jnp.asarray(array, jnp.int32) for name, array in setting.inputs().items()}
    labels_BT = jnp.asarray(setting.labels_BT(absent=-100), jnp.int32)

    def loss_of(params, key):
        logits = model(
            inputs["tokens_BT"], token_type_ids=inputs["segments_BT"], params=params, dropout_rng=key, train=True
        )
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        is_predicted_BT = labels_BT >= 0
        mlm = cross_entropy(logits.prediction_logits, jnp.maximum(labels_BT, 0)).mean(where=is_predicted_BT)
        return mlm + cross_entropy(logits.seq_relationship_logits, inputs["is_random_BN"][:, 0]).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state):
        params, opt_state, key = state
        key, dropout_key = jax.random.split(key)
        loss, gradient = jax.value_and_grad(loss_of)(params, dropout_key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key), loss

    state = (model.params, optimizer.init(model.params), jax.random.key(0))

    def step() -> float:
        nonlocal state
        state, loss = train(state)
        jax.block_until_ready(state)
        return float(loss)

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    args = parser.parse_args()
    worker.serve(lambda: build(Setting(**args.setting)), ("jax", "flax", "optax", "transformers"))


if __name__ == "__main__":
    main()
