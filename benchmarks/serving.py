"""Requests a second of `bertjax serve` beside a pool of threads that computes each text alone.

    python -m benchmarks.serving --out=benchmarks/results/serving.jsonl
    python -m benchmarks.serving --model=reviews.int8.onnx --file=reviews.csv --out=FILE
    python -m benchmarks.serving --markdown --out=FILE

Without --model, a classifier in the shape of MiniLM (6 layers of width 384) with random weights is written in int8,
which takes the extra [onnx]: speed does not depend on what the weights have learned. Each server is a process of its
own, and the clients are connections of this process: all of them share the cores. Each client asks for one text, waits
for the answer and asks again. The servers take turns at each number of clients, so that other load on the machine meets
both. A round is a line of --out. What counts is the most requests a second whose 99th percentile is below 50 ms, the
median of the rounds. CPU time of a request is that of all threads that serve it: the event loop (HTTP and JSON), the
model (tokenizer and ONNX Runtime) and the client; other load changes it less than the clock. It takes three minutes.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.commands import REPOSITORY
from benchmarks.resumable import Line, append, finished
from benchmarks.train_step import machine, threads
from bertjax.cli.bench import records_for
from bertjax.inference.onnx import OnnxModel
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

ARMS = ("serve", "pool")
CLIENTS = (1, 2, 4, 6, 8, 16, 32)
# CPU time of a request in milliseconds, by what it is spent on.
CPU = ("cpu_http", "cpu_model", "cpu_client")
# The bound on the 99th percentile, in seconds.
BOUND = 0.05
ROUNDS, SECONDS = 3, 3.0


def make(path: Path) -> None:
    """Write a classifier in the shape of MiniLM with random weights, in int8."""
    from bertjax.config.config import from_dict, to_dict
    from bertjax.config.export import Export
    from bertjax.data import sources, tokenizer
    from bertjax.data.tokenizer_config import TokenizerConfig
    from bertjax.interop import onnx
    from bertjax.training.setup import init_state, make_setups

    texts = [document.text for document in sources.documents("embedded:en", "text")]
    tokens = tokenizer.train(texts, TokenizerConfig(kind="wordpiece", vocab_size=30_522 // 2, lowercase=True))
    config = from_dict(
        {
            "model": {"layers": 6, "width": 384, "heads": 12, "feedforward": 1536, "max_positions": 512},
            "tasks": {
                "classification": {
                    "objective": {"kind": "classification", "classes": ["bad", "good"]},
                    "examples": {"kind": "labeled_text", "train": "none.csv", "heldout": "none.csv"},
                }
            },
        }
    )
    setup = make_setups(config, tokens.vocab_size)[-1]
    params = init_state(setup)["params"]
    onnx.write_int8(path, Export(to_dict(config), setup.encoder, params, tokens, {}))


@contextmanager
def running(arm: str, model: str, workers: int) -> Iterator[tuple[int, int]]:
    """Start a server and yield its port and its process."""
    command = [sys.executable, "-m", "benchmarks.arms.plain_server", model, str(workers)]
    if arm == "serve":
        command = [sys.executable, "-m", "bertjax", "serve", model, "--port=0", f"--workers={workers}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            line = process.stdout.readline()
            line = process.stdout.readline() if arm == "serve" else line
            yield int(re.search(r"(\d+)(/predict)?$", line.strip())[1]), process.pid
        finally:
            process.terminate()


async def _client(port: int, bodies: Sequence[bytes], until: float) -> list[float]:
    """Ask for one text after the other on one connection; return the seconds of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds, number = [], 0
    while (start := time.perf_counter()) < until:
        body = bodies[number % len(bodies)]
        writer.write(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise UserError(f"the server answered {head.splitlines()[0].decode()}")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        seconds.append(time.perf_counter() - start)
        number += 1
    writer.close()
    return seconds


async def _load(port: int, texts: Sequence[str], clients: int, duration: float) -> list[float]:
    bodies = [json.dumps({"texts": [text]}).encode() for text in texts]
    until = time.perf_counter() + duration
    # Clients start at different texts, so that they do not all ask for the longest at once.
    parts = [bodies[number * 7 % len(bodies) :] + bodies[: number * 7 % len(bodies)] for number in range(clients)]
    answers = await asyncio.gather(*(_client(port, part, until) for part in parts))
    return [second for part in answers for second in part]


def _cpu_seconds(server: int) -> np.ndarray:
    """Return the CPU time so far of the server's first thread, of its other threads, and of this process; [3]."""
    seconds = np.array([0.0, 0.0, time.process_time()])
    for thread in Path(f"/proc/{server}/task").iterdir():
        nanoseconds = int((thread / "schedstat").read_text().split()[0])
        seconds[0 if thread.name == str(server) else 1] += nanoseconds / 1e9
    return seconds


def measure(model: str, texts: Sequence[str], clients: Sequence[int], duration: float) -> Line:
    """Return a round: {arm: {clients: requests a second, and milliseconds of an answer and of CPU for each}}."""
    cores, arms = threads(), {arm: {} for arm in ARMS}
    with ExitStack() as stack:
        servers = {arm: stack.enter_context(running(arm, model, cores)) for arm in ARMS}
        for port, _ in servers.values():
            asyncio.run(_load(port, texts, 2 * cores, 1.0))  # before the clock starts
        for count in clients:
            for arm, (port, process) in servers.items():
                before = _cpu_seconds(process)
                seconds = asyncio.run(_load(port, texts, count, duration))
                cpu = (_cpu_seconds(process) - before) * 1e3 / len(seconds)
                p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
                arms[arm][str(count)] = {
                    "requests_per_second": len(seconds) / duration,
                    "p50": p50,
                    "p99": p99,
                    **dict(zip(CPU, map(float, cpu), strict=True)),
                }
    return {"model": Path(model).name, "arms": arms, "cores": cores, "machine": machine()}


def best_of(line: Line, arm: str) -> float:
    """Return the most requests a second of a round whose 99th percentile is within the bound; 0 if there are none."""
    within = (of["requests_per_second"] for of in line["arms"][arm].values() if of["p99"] < BOUND * 1e3)
    return max(within, default=0.0)


def markdown(lines: Sequence[Line]) -> str:
    """Return the tables of all rounds, medians."""
    rows = ["| clients | serve: requests/s | p50, p99 ms | pool: requests/s | p50, p99 ms |", "|---|---|---|---|---|"]
    shares = [
        "| clients | serve: HTTP, model, client | pool: HTTP, model, client | pool / serve |",
        "|---|---|---|---|",
    ]
    for count in lines[0]["arms"][ARMS[0]]:
        cells, cpu = [], []
        for arm in ARMS:
            of = [line["arms"][arm][count] for line in lines]
            middle = {name: float(np.median([one[name] for one in of])) for name in of[0]}
            cells += [f"{middle['requests_per_second']:,.0f}", f"{middle['p50']:.1f}, {middle['p99']:.1f}"]
            cpu.append([middle[name] for name in CPU])
        rows.append(f"| {count} | {' | '.join(cells)} |")
        parts = [", ".join(f"{part:.2f}" for part in of) for of in cpu]
        shares.append(f"| {count} | {' | '.join(parts)} | {sum(cpu[1]) / sum(cpu[0]):.2f} |")
    best = [float(np.median([best_of(line, arm) for line in lines])) for arm in ARMS]
    ratio = f"{best[0] / best[1]:.2f}" if best[1] else "-"
    rows.append(f"| p99 below 50 ms | {best[0]:,.0f} | | {best[1]:,.0f} ({ratio} times) | |")
    return "\n".join([*rows, "", "CPU time of a request in milliseconds:", "", *shares])


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="a classifier of bertjax convert --to=MODEL.onnx --quantize=int8")
    parser.add_argument("--file", default="", help="texts, as for bertjax bench (default: the embedded English corpus)")
    parser.add_argument("--out", type=Path, required=True, help="file of the rounds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for each number of clients")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file")
    args = parser.parse_args(argv)
    if not args.markdown:
        with tempfile.TemporaryDirectory() as folder:
            model = args.model or str(Path(folder) / "minilm_int8.onnx")
            if not args.model:
                make(Path(model))
            task = OnnxModel(model).task()
            rows = [[record[field] for field in task.fields] for record in records_for(task, args.file)]
            texts = [row if len(row) > 1 else row[0] for row in rows]
            for _ in range(args.rounds):
                append(args.out, measure(model, texts, CLIENTS, args.seconds))
    print(markdown(finished(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
