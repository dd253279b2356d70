"""ModernBERT, Ettin and mmBERT at their published sizes: how far bertjax is from transformers.

    python -m benchmarks.modernbert_parity ettin_17m modernbert_base --out=benchmarks/results/modernbert_parity.jsonl

Every tensor is random, norms and the decoder's bias too. A line has the largest difference of hidden states and of MLM
logits in float32, and the norm of the difference of the gradient of the MLM loss, divided by that of the gradient. Rows
are longer than the windows. It needs the extra [interop].
"""

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.interop import families, names
from bertjax.models import vocabulary
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.models.presets import PRESETS

FAMILY, PARTS = families.of_config({"model_type": "modernbert"}), frozenset({"mlm"})
ROWS, LENGTH, MASKED = 2, 256, 64
VOCABULARIES = {"ettin": 50_368, "modernbert": 50_368, "mmbert": 256_000}


def measured(preset: str) -> dict:
    """Return the line of one preset."""
    encoder = dataclasses.replace(PRESETS[preset], vocab_size=VOCABULARIES[preset.partition("_")[0]])
    settings = FAMILY.settings(encoder, FAMILY.class_of(PARTS)) | {"pad_token_id": 0}
    torch.manual_seed(0)
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig.from_dict(settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    draw = np.random.default_rng(0)
    tokens_BT = draw.integers(5, encoder.vocab_size, (ROWS, LENGTH))
    positions_BK = np.sort([draw.permutation(LENGTH)[:MASKED] for _ in range(ROWS)])
    labels_BK = draw.integers(5, encoder.vocab_size, positions_BK.shape)

    hidden_BTD = model.model(torch.tensor(tokens_BT)).last_hidden_state
    at = torch.tensor(positions_BK)[..., None].expand(-1, -1, encoder.width)
    logits_BKV = model.decoder(model.head(hidden_BTD.gather(1, at)))
    torch.nn.functional.cross_entropy(logits_BKV.flatten(0, 1), torch.tensor(labels_BK).flatten()).backward()
    tensors = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}

    table, shapes = FAMILY.names(encoder, PARTS), FAMILY.shapes(encoder)
    params = unflatten_dict(names.to_params(FAMILY.canonical(tensors), table, shapes), sep="/")

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        encoded = Encoder(encoder).apply({"params": params["encoder"]}, tokens_BT)
        read_BKD = jnp.take_along_axis(encoded.hidden, positions_BK[..., None], axis=1)
        word_VE = params["encoder"]["embeddings"]["word"]
        logits_BKV = MaskedLMHead(encoder).apply({"params": params["heads"]["mlm"]}, read_BKD, word_VE)
        scores_BK = jnp.take_along_axis(jax.nn.log_softmax(logits_BKV), labels_BK[..., None], axis=-1)
        return -jnp.mean(scores_BK), (encoded.hidden, logits_BKV[..., : encoder.vocab_size])

    (_, (own_hidden, own_logits)), own = jax.jit(loss)(vocabulary.pad(params, encoder))
    flat = flatten_dict(jax.tree.map(np.asarray, vocabulary.cut(own, encoder)), sep="/")
    own_gradients = FAMILY.published(names.to_tensors(flat, table))
    squares = {name: np.sum((own_gradients[name] - gradient) ** 2) for name, gradient in gradients.items()}
    return {
        "preset": preset,
        "tokens": [ROWS, LENGTH],
        "hidden": float(np.abs(own_hidden - hidden_BTD.detach().numpy()).max()),
        "mlm_logits": float(np.abs(own_logits - logits_BKV.detach().numpy()).max()),
        "largest_logit": float(logits_BKV.detach().abs().max()),
        "gradient": float((sum(squares.values()) / sum(np.sum(x**2) for x in gradients.values())) ** 0.5),
        "transformers": transformers.__version__,
        "jax": jax.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "presets", nargs="+", choices=[name for name in PRESETS if name.startswith(tuple(VOCABULARIES))]
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for preset in arguments.presets:
        line = json.dumps(measured(preset))
        print(line, flush=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
