"""transformers' `BertForPreTraining` on PyTorch, as its users train it: fused AdamW, `clip_grad_norm_`.

Its masked-LM head computes the vocabulary product at all T positions and it knows no packing: a row is one example.
That is what transformers does. `--predicted` is what a user may do about it: the head reads the predicted positions.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.arms import worker
from benchmarks.arms.setting import Setting


def build(
    setting: Setting, compiled: bool, bf16: bool, device: str = "cpu", predicted: bool = False
) -> Callable[[], float]:
    """Return a function that trains one step on the setting's batch and returns the loss.

    Raises:
      ModuleNotFoundError: PyTorch or transformers is not installed.
    """
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=setting.vocab_size,
        hidden_size=setting.width,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        intermediate_size=setting.feedforward,
        max_position_embeddings=setting.max_positions,
        hidden_dropout_prob=setting.dropout,
        attention_probs_dropout_prob=setting.attention_dropout,
        attn_implementation="sdpa",
    )
    inputs = setting.inputs()
    batch = {
        "input_ids": torch.from_numpy(inputs["tokens_BT"]),
        "token_type_ids": torch.from_numpy(inputs["segments_BT"]),
        "attention_mask": torch.ones(setting.batch, setting.seq_len, dtype=torch.long),
        "labels": torch.from_numpy(setting.labels_BT(absent=-100)),
        "next_sentence_label": torch.from_numpy(inputs["is_random_BN"][:, 0].copy()),
    }
    model = BertForPreTraining(config)
    if predicted:
        batch["labels"] = torch.from_numpy(inputs["labels_BK"])
        model = _at(model, torch.from_numpy(inputs["predicted_BK"]))
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    return step_of(model.to(device), batch, setting, compiled, bf16)


def _at(model: Any, predicted_BK: Any) -> Any:
    """Return a module with the parameters and the loss of a model, whose heads read chosen columns [B, K] only."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers.modeling_outputs import ModelOutput

    class AtPredicted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
            self.register_buffer("predicted_BK1", predicted_BK[..., None])

        @property
        def device(self):
            return self.model.device

        def forward(self, labels, next_sentence_label, **inputs):
            states_BTD, pooled_BD = self.model.bert(**inputs)[:2]
            states_BKD = states_BTD.gather(1, self.predicted_BK1.expand(-1, -1, states_BTD.shape[-1]))
            logits_BKV, logits_B2 = self.model.cls(states_BKD, pooled_BD)
            loss = cross_entropy(logits_BKV.flatten(0, 1), labels.flatten())
            return ModelOutput(loss=loss + cross_entropy(logits_B2, next_sentence_label))

    return AtPredicted()


def step_of(
    model: Any, batch: Mapping[str, Any], setting: Setting, compiled: bool, bf16: bool = False
) -> Callable[[], float]:
    """Return a function that trains one step of a model of transformers on a batch and returns the loss."""
    import torch

    forward, device = torch.compile(model.train()) if compiled else model.train(), model.device.type
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=setting.learning_rate, weight_decay=setting.weight_decay, eps=1e-6, fused=True
    )

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip_norm)
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    parser.add_argument("--compiled", action="store_true", help="use torch.compile")
    parser.add_argument("--bf16", action="store_true", help="use bfloat16 autocast")
    parser.add_argument("--predicted", action="store_true", help="heads at the predicted positions only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    setting = Setting(**args.setting)
    options = args.compiled, args.bf16, args.device, args.predicted
    worker.serve(lambda: build(setting, *options), ("torch", "transformers"))


if __name__ == "__main__":
    main()
