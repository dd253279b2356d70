"""Every family of transformers with every head: how far bertjax is from transformers, on texts and pairs.

    python -m benchmarks.foreign_models --out=benchmarks/results/foreign_models.jsonl

Each model has random weights and the tokenizer of its own kind. A line has the largest difference of the logits of
the ONNX file (`onnx`) and of the folder that bertjax writes back (`back`), and of the answers of `bertjax predict`
(`predict`: of probabilities and numbers, or the share of texts and tags that differ). It needs the extra [onnx]. The
eight cases of XLNet took 290 s of one core. Cases that the file has already are left out, so that a run can be
continued.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import transformers

from tests.interop import foreign


def measured(family: str, head: str) -> dict:
    """Return the line of one family with one head."""
    with tempfile.TemporaryDirectory() as folder:
        made = foreign.make(family, head, Path(folder) / "theirs")
        reference = list(foreign.logits(made.tokenizer, made.model, head))
        errors = [_error(ours, theirs) for ours, theirs in foreign.answers(made, head)]
        back = foreign.logits_of_what_is_written_back(made, head, Path(folder) / "back")
        files = foreign.logits_of_onnx(made, head, Path(folder) / "model.onnx")
        return {
            "family": family,
            "head": head,
            "predict": max(errors, default=None),
            "back": foreign.difference(back, reference),
            "onnx": foreign.difference(files, reference),
            "largest_logit": max(float(np.abs(values).max()) for values in reference),
            "transformers": transformers.__version__,
        }


def _error(ours, theirs) -> float:
    if isinstance(theirs, np.ndarray):
        return float(np.abs(np.asarray(ours) - theirs).max())
    if isinstance(theirs, str):
        return float(ours != theirs)
    return float(np.mean([a != b for a, b in zip(ours, theirs, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="file to which lines are added")
    parser.add_argument("--families", nargs="*", default=list(foreign.FAMILIES))
    parser.add_argument("--heads", nargs="*", default=list(foreign.HEADS))
    args = parser.parse_args()
    lines = Path(args.out).read_text(encoding="utf-8").splitlines() if Path(args.out).exists() else []
    done = {(line["family"], line["head"]) for line in map(json.loads, lines) if "error" not in line}
    for family in args.families:
        for head in args.heads:
            if (family, head) in done:
                continue
            try:
                line = measured(family, head)
            except Exception as error:  # the other cases are still measured
                line = {"family": family, "head": head, "error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(line), flush=True)
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
