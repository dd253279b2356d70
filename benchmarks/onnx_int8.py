"""ONNX in int8 beside float32: bytes, sentence embeddings of STS-B, and latency on one core.

    python -m benchmarks.onnx_int8 --model=EXPORT --data=FOLDER --out=benchmarks/results/onnx_int8.jsonl

EXPORT is a sentence encoder without a head, such as all-MiniLM-L6-v2 as `bertjax convert` reads it. FOLDER is described
in benchmarks/README.md. The command needs the extra [onnx]. Sentence embeddings are means of hidden states; the
reference of all cosines is the float32 file, which `bertjax convert` compares with bertjax to 1e-4. Both variants of
int8 are measured: weights of 7 bits, which `bertjax convert` writes, and of 8 bits. Latency is that of sentences of the
development set, with onnxruntime on one thread. The files are measured in turns, and the median of all turns counts.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.resumable import finished
from benchmarks.train_step import machine
from bertjax.config.opening import SavedModel
from bertjax.data.labeled import tables
from bertjax.data.sources.base import stop
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import onnx, onnx_int8
from bertjax.runtime import command_line

BATCHES = (1, 32)
# {file: whether its weights have 7 bits; None for float32}
REDUCED = {"float32": None, "int8": True, "int8, 8 bits": False}


def session_of(path: Path):
    """Return an onnxruntime session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def batches_of(encoded: Sequence[list[int]], tokenizer: Tokenizer, names: Sequence[str], size: int) -> list[dict]:
    """Return the inputs of batches of sentences, each padded to its longest sentence."""
    batches = []
    for start in range(0, len(encoded), size):
        rows = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in encoded[start : start + size]]
        longest = max(map(len, rows))
        tokens_BT = np.array([row + [tokenizer.pad_id] * (longest - len(row)) for row in rows], np.int64)
        mask_BT = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
        every = {"input_ids": tokens_BT, "attention_mask": mask_BT, "token_type_ids": np.zeros_like(tokens_BT)}
        batches.append({name: every[name] for name in names})
    return batches


def embeddings(session, batches: list[dict]) -> np.ndarray:
    """Return the mean hidden state of each sentence, of length 1; float32 [S, D]."""
    means = []
    for inputs in batches:
        hidden_BTD = session.run(["last_hidden_state"], inputs)[0]
        mask_BT1 = inputs["attention_mask"][..., None].astype(np.float32)
        means.append((hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1))
    means_SD = np.concatenate(means)
    return means_SD / np.linalg.norm(means_SD, axis=1, keepdims=True)


def milliseconds(session, batches: list[dict]) -> float:
    """Return the mean time of a sentence."""
    began = time.perf_counter()
    for inputs in batches:
        session.run(["last_hidden_state"], inputs)
    return 1000 * (time.perf_counter() - began) / sum(len(inputs["input_ids"]) for inputs in batches)


def measure(model: Path, data: Path, rounds: int, sentences: int) -> list[dict]:
    """Return a line for each file: its bytes, its agreement with float32, its Spearman correlation, its latency."""
    export = SavedModel(model).export
    names, tokenizer = onnx.inputs_of(export), export.tokenizer
    [path] = sorted((data / "glue" / "STS-B").glob("dev.tsv*"))
    records = tables.read(str(path), ["sentence1", "sentence2", "score"], False, stop)
    encoded = tokenizer.encode([record[column] for column in ("sentence1", "sentence2") for record in records])
    order = np.argsort([len(ids) for ids in encoded], kind="stable")
    ordered = batches_of([encoded[i] for i in order], tokenizer, names, BATCHES[-1])
    timed = [encoded[i] for i in np.linspace(0, len(encoded) - 1, sentences).astype(int)]
    by_size = {size: batches_of(sorted(timed, key=len), tokenizer, names, size) for size in BATCHES}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in REDUCED}
        for name, reduce_range in REDUCED.items():
            if reduce_range is None:
                onnx.write(paths[name], export)
            else:
                onnx_int8.write(paths[name], export, reduce_range)
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        sessions = {name: session_of(path) for name, path in paths.items()}
    times = {(name, size): [] for name in sessions for size in BATCHES}
    for turn in range(rounds + 1):  # the first is a warm-up
        for (name, size), taken in times.items():
            taken += [milliseconds(sessions[name], by_size[size])][: turn > 0]
    lines, reference = [], None
    for name, session in sessions.items():
        vectors = np.empty((len(encoded), export.encoder.width), np.float32)
        vectors[order] = embeddings(session, ordered)
        reference = vectors if reference is None else reference
        cosines, (first, second) = (vectors * reference).sum(1), np.split(vectors, 2)
        scores = [float(record["score"]) for record in records]
        lines.append(
            {
                "file": name,
                "bytes": sizes[name],
                "share_of_bytes": sizes[name] / sizes["float32"],
                "cosine_mean": float(cosines.mean()),
                "cosine_min": float(cosines.min()),
                "spearman": float(spearmanr((first * second).sum(1), scores).statistic),
                "pairs": len(records),
                **{f"milliseconds_batch_{size}": times[name, size] for size in BATCHES},
                "int8_units": int8_units(),
                "machine": machine(),
            }
        )
    return lines


def int8_units() -> list[str]:
    """Return the processor's flags of int8 products."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().partition("flags")[2].partition("\n")[0].split() if info.exists() else []
    return sorted(flag for flag in flags if "vnni" in flag or "amx_int8" in flag)


def markdown(lines: list[dict]) -> str:
    """Return the table of a file of lines."""
    rows = ["| file | bytes | cosine to float32: mean, lowest | Spearman | ms at batch 1 | ms at batch 32 |"]
    rows.append("|---|---|---|---|---|---|")
    for line in lines:
        medians = [f"{np.median(line[f'milliseconds_batch_{size}']):.2f}" for size in BATCHES]
        cosines = f"{line['cosine_mean']:.4f}, {line['cosine_min']:.4f}"
        size = f"{line['bytes'] / 1e6:.1f} MB ({line['share_of_bytes']:.1%})"
        rows.append(f"| {line['file']} | {size} | {cosines} | {line['spearman']:.4f} | {' | '.join(medians)} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(prog="python -m benchmarks.onnx_int8", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="an export of a sentence encoder")
    parser.add_argument("--data", type=Path, help="folder with glue/STS-B/dev.tsv")
    parser.add_argument("--out", type=Path, required=True, help="file of lines")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=256, help="sentences of a turn (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and measure nothing")
    args = parser.parse_args(argv)
    if not args.markdown:
        lines = measure(args.model, args.data, args.rounds, args.sentences)
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(markdown(finished(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
