"""Compute the golden values of `test_neobert.py` with the authors' code, which is not in this repository.

From the root of the repository, with PyTorch and transformers:

    git clone https://github.com/chandar-lab/NeoBERT CHECKOUT  # commit ed75b68
    TORCH_COMPILE_DISABLE=1 python -m benchmarks.golden_neobert CHECKOUT

It writes `tests/interop/neobert.safetensors`: all tensors of a model under the authors' names, drawn at random, rows of
tokens, and what the authors' classes compute with them in float32: states, logits, and gradients of the masked-LM loss.
Their code imports SwiGLU from xformers. This script replaces it by a module with the same formula and names (xformers
0.0.28, `xformers.ops.SwiGLU`: w3(silu(w1 x) * w2 x), with w1 and w2 joined in `w12`), and stubs an attention that is
never called.
"""

import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional

PATH = Path(__file__).parents[1] / "tests" / "interop" / "neobert.safetensors"
# int(2 * 20 / 3) = 13 becomes 16, the next multiple of 8.
SIZES = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
    "norm_eps": 1e-5, "pad_token_id": 0, "max_length": 20,
}  # fmt: skip
LENGTHS, LABELS = (12, 7), 3


class _SwiGLU(torch.nn.Module):
    """Stands in for `xformers.ops.SwiGLU`."""

    def __init__(self, width: int, hidden: int, outputs: int, bias: bool):
        super().__init__()
        self.w12 = torch.nn.Linear(width, 2 * hidden, bias=bias)
        self.w3 = torch.nn.Linear(hidden, outputs, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.w12(x).chunk(2, dim=-1)
        return self.w3(functional.silu(first) * second)


def _authors_code(checkout: str) -> types.ModuleType:
    operations = types.ModuleType("xformers.ops")
    operations.SwiGLU, operations.memory_efficient_attention = _SwiGLU, None
    sys.modules |= {"xformers": types.ModuleType("xformers"), "xformers.ops": operations}
    datasets = types.ModuleType("datasets")
    datasets.Dataset = object
    sys.modules.setdefault("datasets", datasets)
    sys.path.insert(0, str(Path(checkout) / "src"))
    from neobert.model import model

    return model


def _drawn(model: torch.nn.Module) -> torch.nn.Module:
    """Draw every tensor at random, norms and biases too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.ndim == 1))
    return model.eval()


def main(checkout: str) -> None:
    """Write `PATH`."""
    torch.manual_seed(0)
    code = _authors_code(checkout)
    config = code.NeoBERTConfig(**SIZES, hidden_act="SwiGLU", flash_attention=False)
    model = _drawn(code.NeoBERTLMHead(config))
    columns, rows = torch.arange(max(LENGTHS)), len(LENGTHS)
    real_BT = columns < torch.tensor(LENGTHS)[:, None]
    tokens_BT = torch.where(real_BT, torch.randint(5, SIZES["vocab_size"], (rows, len(columns))), 0)
    labels_BT = torch.where(real_BT, torch.randint(5, SIZES["vocab_size"], (rows, len(columns))), -100)
    mask_BT = torch.zeros(real_BT.shape).masked_fill(~real_BT, float("-inf"))
    states = []
    for layer in model.model.transformer_encoder:
        layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    outputs = model(tokens_BT, mask_BT)
    functional.cross_entropy(outputs["logits"].flatten(0, 1), labels_BT.flatten()).backward()
    classifier = _drawn(code.NeoBERTForSequenceClassification(config, num_labels=LABELS))
    classifier.model.load_state_dict(model.model.state_dict())
    own = {name: value for name, value in classifier.state_dict().items() if not name.startswith("model.")}
    values = {
        "tokens": tokens_BT.int(),
        "labels": labels_BT.int(),
        "hidden": torch.stack([*states, outputs["hidden_representation"]]),
        "logits": outputs["logits"],
        "classes": classifier(tokens_BT, mask_BT)["logits"],
        **{f"weights/{name}": value for name, value in model.state_dict().items()},
        **{f"gradients/{name}": value.grad for name, value in model.named_parameters()},
        **{f"classifier/{name}": value for name, value in own.items()},
    }
    save_file({name: np.ascontiguousarray(value.detach().numpy()) for name, value in values.items()}, PATH)


if __name__ == "__main__":
    main(*sys.argv[1:])
