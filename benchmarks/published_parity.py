"""Modern encoders at their published sizes: how far bertjax is from transformers.

    python -m benchmarks.published_parity ettin_17m modernbert_base --out=benchmarks/results/published_parity.jsonl

Every tensor is random, norms and biases too. A line has the largest difference of hidden states and of MLM logits in
float32, and the norm of the difference of the gradient of the MLM loss, divided by that of the gradient. Rows are
longer than the windows. It needs transformers 5 and PyTorch.
"""

import argparse
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
from bertjax.models.heads import masked_lm_head
from bertjax.models.presets import PRESETS

PARTS = frozenset({"mlm"})
ROWS, LENGTH, MASKED = 2, 256, 64
# {first part of a preset: (model_type, size of the published vocabulary, its id of padding)}
PUBLISHED = {
    "ettin": ("modernbert", 50_368, 50_283),
    "modernbert": ("modernbert", 50_368, 50_283),
    "mmbert": ("modernbert", 256_000, 0),
    "eurobert": ("eurobert", 128_256, 128_001),
    "deberta": ("deberta-v2", 128_100, 0),
    "mpnet": ("mpnet", 30_527, 1),
}


def measured(preset: str) -> dict:
    """Return the line of one preset."""
    model_type, vocab_size, pad_id = PUBLISHED[preset.partition("_")[0]]
    family, encoder = (
        families.of_config({"model_type": model_type}),
        PRESETS[preset].replace({"vocab_size": vocab_size}),
    )
    settings = family.settings(encoder, family.class_of(PARTS)) | {"model_type": model_type, "pad_token_id": pad_id}
    config = transformers.CONFIG_MAPPING[model_type].from_dict(settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    draw = np.random.default_rng(0)
    tokens_BT = draw.integers(5, encoder.vocab_size, (ROWS, LENGTH))
    positions_BK = np.sort([draw.permutation(LENGTH)[:MASKED] for _ in range(ROWS)])
    labels_BK = draw.integers(5, encoder.vocab_size, positions_BK.shape)

    with torch.no_grad():
        hidden_BTD = model.base_model(torch.tensor(tokens_BT)).last_hidden_state.numpy()
    logits_BTV = model(torch.tensor(tokens_BT)).logits
    logits_BKV = logits_BTV[torch.arange(ROWS)[:, None], torch.tensor(positions_BK)]
    torch.nn.functional.cross_entropy(logits_BKV.flatten(0, 1), torch.tensor(labels_BK).flatten()).backward()
    tensors = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}

    table, shapes = family.names(encoder, PARTS), family.shapes(encoder)
    params = unflatten_dict(names.to_params(family.canonical(tensors), table, shapes), sep="/")

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        encoded = Encoder(encoder).apply({"params": params["encoder"]}, tokens_BT)
        read_BKD = jnp.take_along_axis(encoded.hidden, positions_BK[..., None], axis=1)
        word_VE, head = params["encoder"]["embeddings"]["word"], masked_lm_head(encoder)(encoder)
        logits_BKV = head.apply({"params": params["heads"]["mlm"]}, read_BKD, word_VE)
        scores_BK = jnp.take_along_axis(jax.nn.log_softmax(logits_BKV), labels_BK[..., None], axis=-1)
        return -jnp.mean(scores_BK), (encoded.hidden, logits_BKV[..., : encoder.vocab_size])

    (_, (own_hidden, own_logits)), own = jax.jit(loss)(vocabulary.pad(params, encoder))
    flat = flatten_dict(jax.tree.map(np.asarray, vocabulary.cut(own, encoder)), sep="/")
    own_gradients = family.published(names.to_tensors(flat, table))
    squares = {name: np.sum((own_gradients[name] - gradient) ** 2) for name, gradient in gradients.items()}
    return {
        "preset": preset,
        "tokens": [ROWS, LENGTH],
        "hidden": float(np.abs(own_hidden - hidden_BTD).max()),
        "mlm_logits": float(np.abs(own_logits - logits_BKV.detach().numpy()).max()),
        "largest_logit": float(logits_BKV.detach().abs().max()),
        "gradient": float((sum(squares.values()) / sum(np.sum(x**2) for x in gradients.values())) ** 0.5),
        "transformers": transformers.__version__,
        "jax": jax.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+", choices=[name for name in PRESETS if name.partition("_")[0] in PUBLISHED])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for preset in arguments.presets:
        line = json.dumps(measured(preset))
        print(line, flush=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
