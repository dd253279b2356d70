"""Linear probes of a frozen encoder, one for each layer: parts of speech of Universal Dependencies from its states.

    python -m benchmarks.family_probe EXPORT --data=DATA

DATA has ud/en_ewt.train.conllu.gz and ud/en_ewt.dev.conllu.gz. The first piece of a word represents it. Layer 0 is the
embeddings: static vectors with a position. The probe is a softmax regression on standardized states, trained on all
words at once. It prints {`layers`: the accuracy of each layer, `majority`: that of the most frequent tag} as JSON.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data.labeled.tagged import Tagged
from bertjax.models import taps
from bertjax.models.encoder import Encoder
from bertjax.runtime import command_line

SETTINGS = {"files": "ud/en_ewt.{}.conllu.gz", "tags": "upos", "steps": 300, "learning_rate": 0.03, "decay": 1e-4}
_ROWS = 256


def probe(model: Export, folder: str) -> dict:
    """Return {`layers`: L + 1 accuracies, `majority`: that of the most frequent tag of the training words}."""
    files = [f"{folder}/{SETTINGS['files'].format(split)}" for split in ("train", "dev")]
    labeled = Tagged(train=files[0], heldout=files[1], conllu=SETTINGS["tags"], stride=model.encoder.max_positions // 2)
    records = [labeled.read(path) for path in files]
    classes = tuple(sorted(labeled.class_counts(records[0])))
    records[1] = [record for record in records[1] if set(record["tags"]) <= set(classes)]
    (train, labels), (heldout, answers) = (states(model, labeled, part, classes) for part in records)
    layers = [accuracy(*pair, labels, answers, len(classes)) for pair in zip(train, heldout, strict=True)]
    return {"layers": layers, "majority": float(np.mean(answers == np.bincount(labels).argmax()))}


def states(model: Export, labeled: Tagged, records: list, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of words after each layer, float32 [L + 1, words, D], and their tags, int32 [words]."""
    length = model.encoder.max_positions
    examples = labeled.encode(records, model.tokenizer, length, classes)
    ragged = examples.ragged
    rows = np.repeat(np.arange(len(examples)), ragged.lengths)
    columns = np.arange(len(ragged.tokens)) - np.repeat(ragged.offsets[:-1], ragged.lengths)
    tokens, real, tags = (np.zeros((len(examples), length), np.int32) for _ in range(3))
    tokens[rows, columns], real[rows, columns] = ragged.tokens, 1
    tags[rows, columns] = ragged.token_labels["tag"] + 1  # 0: not the start of a word
    encoder, params = Encoder(model.encoder), model.params["encoder"]

    @jax.jit
    def all_layers(params, tokens_BT, real_BT):
        variables = {"params": params, taps.CAPTURED: {"hidden": None}}
        positions_BT = jnp.arange(length) * real_BT
        inputs = (tokens_BT, jnp.zeros_like(tokens_BT), positions_BT, real_BT)
        encoded, captured = encoder.apply(variables, *inputs, mutable=[taps.CAPTURED])
        # The last state is that after the final norm, if there is one.
        return jnp.concatenate([captured[taps.CAPTURED]["hidden"][:-1], encoded.hidden[None]]).astype(jnp.float32)

    parts = []
    for start in range(0, len(tokens), _ROWS):
        part = slice(start, start + _ROWS)
        fill = ((0, _ROWS - len(tokens[part])), (0, 0))  # one shape, one compilation
        hidden_LBTD = np.asarray(all_layers(params, np.pad(tokens[part], fill), np.pad(real[part], fill)))
        parts.append(hidden_LBTD[:, : len(tokens[part])][:, tags[part] > 0])
    return np.concatenate(parts, axis=1), tags[tags > 0] - 1


def accuracy(train: np.ndarray, heldout: np.ndarray, labels: np.ndarray, answers: np.ndarray, classes: int) -> float:
    """Fit a softmax regression to states [words, D] and return the share of held-out words that it tags correctly."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    train, heldout = (train - mean) / deviation, (heldout - mean) / deviation
    weights = {"kernel": jnp.zeros((train.shape[1], classes)), "bias": jnp.zeros(classes)}
    steps = SETTINGS["steps"]
    optimizer = optax.adam(optax.cosine_decay_schedule(SETTINGS["learning_rate"], steps))

    def loss(weights):
        logits = train @ weights["kernel"] + weights["bias"]
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return fit + SETTINGS["decay"] * jnp.sum(weights["kernel"] ** 2)

    @jax.jit
    def fitted(weights):
        def step(_, carry):
            weights, state = carry
            updates, state = optimizer.update(jax.grad(loss)(weights), state)
            return optax.apply_updates(weights, updates), state

        return jax.lax.fori_loop(0, steps, step, (weights, optimizer.init(weights)))[0]

    weights = fitted(weights)
    guesses = np.argmax(heldout @ np.asarray(weights["kernel"]) + np.asarray(weights["bias"]), axis=1)
    return float(np.mean(guesses == answers))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.family_probe", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("model", help="an export or a run")
    parser.add_argument("--data", required=True, help="folder of ud/en_ewt.train.conllu.gz and en_ewt.dev.conllu.gz")
    args = parser.parse_args(argv)
    print(json.dumps(probe(SavedModel(args.model).export, args.data)))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
