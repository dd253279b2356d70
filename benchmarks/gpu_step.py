"""Real tokens/s and MFU of training BERT base and large on one GPU: bertjax's own step against transformers.

    python -m benchmarks.gpu_step --torch-python=OTHER_VENV/bin/python --peak-tflops=989
    python -m benchmarks.gpu_step --smoke

Both arms run in bfloat16 on full rows of 128 and 512 tokens. bertjax packs examples of 64 and 128 tokens.
transformers' `BertForPreTraining` (`torch.compile`, SDPA, autocast, fused AdamW) cannot separate the examples of a row
and treats each row as one example. It has no padding either, which is its best case. Goals: 1.5 times its real
tokens/s, and 45% MFU of large at 512 tokens.

The arms take turns as in `benchmarks/train_step.py`. Both are in the GPU's memory: lower `--tokens` if it is too small.
"""

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import train_step
from benchmarks.arms import ours
from benchmarks.arms.setting import Setting
from benchmarks.train_step import Arm
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import Counts, FlopsPart, head_products
from bertjax.models.heads import MaskedLMHead
from bertjax.models.model import HeadSpec
from bertjax.models.presets import PRESETS
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import UserError
from bertjax.training.stage_flops import StepFlops

# Size of the vocabulary that Google published with BERT.
_VOCAB_SIZE = 30_522
# T -> N, the number of examples per row.
_EXAMPLES = {128: 2, 512: 4}


def setting_of(encoder: EncoderConfig, seq_len: int, examples: int, tokens: int, attention_dropout: float) -> Setting:
    """Return a setting with `tokens` tokens per step; 5 of 32 positions are predicted, like 20 of BERT's 128.

    Raises:
      UserError: there are fewer tokens than a row has.
    """
    if tokens < seq_len:
        raise UserError(f"--tokens={tokens} does not fill a row of {seq_len}; give at least that many")
    return Setting(
        layers=encoder.layers,
        width=encoder.width,
        heads=encoder.heads,
        feedforward=encoder.feedforward,
        max_positions=encoder.max_positions,
        vocab_size=encoder.vocab_size,
        batch=tokens // seq_len,
        seq_len=seq_len,
        examples=examples,
        predicted=seq_len * 5 // 32,
        attention_dropout=attention_dropout,
    )


def settings(tokens: int, attention_dropout: float) -> dict[str, Setting]:
    """Return the measured settings by name."""
    return {
        f"{preset}, {seq_len} tokens": setting_of(
            dataclasses.replace(PRESETS[preset], vocab_size=_VOCAB_SIZE), seq_len, examples, tokens, attention_dropout
        )
        for preset in ("base", "large")
        for seq_len, examples in _EXAMPLES.items()
    }


def smoke_settings(attention_dropout: float) -> dict[str, Setting]:
    """Return the setting of a very small model, which shows that the benchmark runs."""
    encoder = EncoderConfig(vocab_size=1000, layers=2, width=64, heads=2, feedforward=128, max_positions=64)
    return {"smoke, 64 tokens": setting_of(encoder, 64, 2, 256, attention_dropout)}


def arms(platform: str, attention: str) -> dict[str, Arm]:
    """Return the arms, with JAX's memory preallocation off: it would leave too little memory for the other arm."""
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    device = {"gpu": "cuda", "cpu": "cpu"}[platform]
    return {
        "bertjax": Arm("ours", (f"--platform={platform}", f"--attention={attention}"), shared),
        "transformers": Arm("pytorch", ("--compiled", "--bf16", f"--device={device}")),
    }


def flops_per_token(setting: Setting, length: int) -> float:
    """Return the useful FLOPs of a step per token, for rows of examples of one length.

    The vocabulary product at positions without a prediction is not useful, and not counted.
    """
    encoder = ours.encoder(setting, unroll=True)
    part = FlopsPart(encoder, {"predictions": head_products(encoder, HeadSpec(MaskedLMHead))})
    counts = Counts(setting.tokens, setting.tokens * length, setting.batch * setting.predicted)
    return StepFlops((part,)).useful(counts) / setting.tokens


def figures(setting: Setting, rates: dict[str, list[float]], peak: float | None) -> dict[str, dict]:
    """Return `train_step.compare` with each arm's useful FLOP/s (median), and its share of the peak if given."""
    results = train_step.compare(rates)
    for name, result in results.items():
        length = setting.length if name == "bertjax" else setting.seq_len
        flops = result["tokens_per_second"]["median"] * flops_per_token(setting, length)
        result |= {"flops": flops, "mfu": flops / peak if peak else None}
    return results


def measure(setting: Setting, chosen: dict[str, Arm], args: argparse.Namespace, peak: float | None) -> dict:
    """Start the arms on a setting, measure them in turns and print a table."""
    workers, answers = train_step.start(chosen, args.torch_python, setting)
    rates = train_step.measure(workers, setting, args.steps, args.rounds)
    for worker in workers:
        worker.close()
    results = figures(setting, rates, peak)
    train_step.print_table(results, {name: answer["loss"] for name, answer in answers.items()})
    for name, result in results.items():
        share = f", MFU {result['mfu']:.1%}" if peak else ""
        print(f"{name}: {result['flops'] / 1e12:.3g} useful TFLOP/s{share}")
    return {"setting": dataclasses.asdict(setting), "arms": answers, "results": results}


def gpu() -> str:
    """Return the name and the driver of the first GPU.

    Raises:
      UserError: there is none.
    """
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    output = subprocess.run(command, capture_output=True, text=True).stdout if shutil.which(command[0]) else ""
    if not output.strip():
        raise UserError("nvidia-smi shows no GPU; --smoke runs a very small model on CPU instead")
    return output.splitlines()[0]


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a very small model on CPU: shows that it runs")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens per step, in all rows")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of an arm in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--attention", choices=("auto", "plain", "cudnn"), default="auto", help="bertjax's attention implementation"
    )
    parser.add_argument(
        "--attention-dropout", type=float, default=0.1, help="attention dropout of both arms; cudnn needs 0"
    )
    parser.add_argument(
        "--peak-tflops", type=float, help="peak TFLOP/s of dense bf16 products, from the GPU's data sheet; for MFU"
    )
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch and transformers")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args(argv)
    for flag in ("steps", "rounds"):
        if getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} must be at least 1")
    if args.peak_tflops is not None and not args.peak_tflops > 0:
        raise UserError(f"--peak-tflops={args.peak_tflops} must be above 0")
    if args.smoke and args.attention == "cudnn":
        raise UserError("--attention=cudnn needs a GPU; leave out --smoke")
    if args.attention == "cudnn" and args.attention_dropout:
        raise UserError(f"--attention=cudnn has no dropout, and --attention-dropout={args.attention_dropout}; give 0")

    machine = train_step.machine() if args.smoke else f"{gpu()}; {train_step.machine()}"
    chosen = arms("cpu" if args.smoke else "gpu", args.attention)
    dropout = args.attention_dropout
    measured = {}
    print(f"machine: {machine}")
    for name, setting in (smoke_settings(dropout) if args.smoke else settings(args.tokens, dropout)).items():
        print(f"\n{name}: {setting}")
        measured[name] = measure(setting, chosen, args, args.peak_tflops and args.peak_tflops * 1e12)
    if args.smoke:
        print("\nA smoke run only shows that the benchmark runs; its figures have no meaning.")
    print("\ntransformers computes the vocabulary product at all positions, bertjax only at the predicted ones.")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "measured": measured}, indent=1))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
