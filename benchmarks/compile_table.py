"""The TPU compiler's forecast for BERT base and large on eight topologies: the table of docs/results/compile_table.md.

    python -m benchmarks.compile_table --out=cells.jsonl
    python -m benchmarks.compile_table --out=cells.jsonl --markdown
    python -m benchmarks.compile_table --out=cells.jsonl --flops

Every cell is a process of its own and a line of the file; a restarted command continues with the missing cells.

A rule sets the batch of a cell. It starts at 16,384 tokens per device and is halved until a step fits. If chips then
wait for each other, the batch is doubled while a step fits and compute does not set the floor: more rows do not change
how much a step sends. If the chip's memory bandwidth sets the floor, the batch stays, since a larger one would not
help. If the compiler crashes, as libtpu 0.0.42 does in a search for windows of nested products, the cell starts again
without the fusion of products with products, and its line records the flag.

`--unroll` compiles cells whose layers are not in a loop. Their names end in `unrolled`.

`--flops` compares XLA's count of a step of an unrolled model on one chip, without dropout, with the model's by formula.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import resumable
from bertjax.cli.compile import run
from bertjax.config import config as configuration
from bertjax.config.config import Config
from bertjax.forecast import report, topologies
from bertjax.runtime import platform
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import RunFailed

_REPOSITORY = Path(__file__).resolve().parents[1]
TOPOLOGIES = ("v2:4x4", "v3:8x8", "v4:2x2x4", "v5e:4x4", "v5e:16x16", "v5p:4x4x4", "v6e:16x16", "2xv5e:16x16")
PRESETS, LENGTHS = ("base", "large"), (128, 512)
_TOKENS_A_DEVICE = 16_384
_WITHOUT_NESTED = "--xla_tpu_dot_dot_fusion=false"
_BERT_VOCABULARY = 30_522


def cell_config(preset: str, seq_len: int, batch: int, dropout: float = 0.1, **runtime) -> Config:
    """Return the configuration of BERT as published, with one sequence length."""
    model = {"preset": preset, "vocab_size": _BERT_VOCABULARY, "dropout": dropout, "attention_dropout": dropout}
    stage = {"seq_len": seq_len, "batch": batch}
    return configuration.from_dict({"model": model, "stages": [stage], "runtime": runtime})


def compile_cell(topology: str, preset: str, seq_len: int, unroll: bool = False) -> dict[str, Any]:
    """Return the forecast of a cell, as from `report.as_dict`, at the batch that the rule chooses."""
    chips = topologies.parse(topology)
    devices = chips.chips * chips.chip.devices
    rows, chosen = _TOKENS_A_DEVICE // seq_len, None
    while True:
        [forecast] = run(cell_config(preset, seq_len, rows * devices, unroll=unroll), topology)
        if not forecast.memory.fits and chosen is None and rows > 1:
            rows //= 2
            continue
        if not forecast.memory.fits:
            return chosen or report.as_dict(forecast)
        chosen = report.as_dict(forecast)
        if chosen["floor"]["binds"] in ("compute", "memory") or rows < _TOKENS_A_DEVICE // seq_len:
            return chosen
        rows *= 2


def compare_flops(preset: str) -> dict[str, Any]:
    """Return the FLOPs of a step of 8,192 tokens on one v5e chip: XLA's count and the model's."""
    [forecast] = run(cell_config(preset, 128, 64, dropout=0.0, unroll=True, remat="none"), "v5e:1x1")
    return {
        "xla": forecast.counts.xla_flops,
        "matrices": forecast.counts.executed_flops,
        "model": forecast.step.model_flops,
    }


def _key(*names: Any) -> str:
    return " ".join(map(str, names))


def finished(path: Path) -> dict[str, resumable.Line]:
    """Return {cell: figures} of a file; the last line of a cell counts."""
    return {line["cell"]: line for line in resumable.finished(path)}


def _in_a_process(path: Path, *names: Any) -> None:
    command = [sys.executable, "-m", "benchmarks.compile_table", f"--out={path}", "--cell", *map(str, names)]
    code = subprocess.run(command, cwd=_REPOSITORY).returncode
    if code < 0:
        print(f"the compiler crashed (signal {-code}); cell {_key(*names)} starts again with {_WITHOUT_NESTED}")
        environment = os.environ | {"LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {_WITHOUT_NESTED}"}
        code = subprocess.run(command, cwd=_REPOSITORY, env=environment).returncode
    if code:
        raise RunFailed(
            f"cell {_key(*names)} failed; the finished cells are in {path}, run the same command again to continue"
        )


def markdown(cells: dict[str, dict]) -> str:
    """Return two tables, what a step needs and what it sends, with the cells in the order of `_cells`."""
    finished_cells = [(names, cells[_key(*names)]) for names in _cells() if _key(*names) in cells]
    lines = [
        "| topology | model | T | chips | strategy | batch | remat | GiB a device | floor | of compute | compile |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, names))} | {_row(cell)} |" for names, cell in finished_cells),
        "",
        "| topology | model | T | MB a device sends in a step |",
        "|---|---|---|---|",
        *(f"| {' | '.join(map(str, names))} | {_collectives(cell)} |" for names, cell in finished_cells),
    ]
    for preset in PRESETS:
        if flops := cells.get(_key("flops", preset)):
            lines.append(
                f"\n{preset}: XLA counts {flops['xla']:.4g} FLOPs, {flops['xla'] / flops['model']:.3f} times the "
                f"model's {flops['model']:.4g}; {flops['matrices']:.4g} of them in matrix products."
            )
    return "\n".join(lines)


def _row(cell: dict) -> str:
    memory, floor = cell["memory"], cell.get("floor")
    used = f"{report.gibibytes(memory['needed'])} of {report.gibibytes(memory['usable'])}"
    return " | ".join(
        [
            str(cell["topology"]["chips"]),
            cell["strategy"],
            f"{cell['batch']:,}",
            cell["remat"],
            used if memory["fits"] else f"**{used}**",
            f"{floor['seconds'] * 1e3:.1f} ms, {floor['binds']}" if floor else "does not fit",
            f"{floor['seconds'] / floor['compute']:.2f}" if floor else "",
            f"{cell['compile_seconds']:.0f} s",
        ]
    )


def _collectives(cell: dict) -> str:
    """Return the megabytes of each kind of collective."""
    sent: dict[str, float] = {}
    for row in cell.get("collectives", ()):
        kind = row["kind"] + (" between slices" if row["between_slices"] else "")
        sent[kind] = sent.get(kind, 0.0) + row["bytes"] / 1e6
    return ", ".join(f"{kind} {megabytes:,.0f}" for kind, megabytes in sent.items() if megabytes >= 1)


def _cells() -> list[tuple[str, str, int]]:
    return [(topology, preset, seq_len) for topology in TOPOLOGIES for preset in PRESETS for seq_len in LENGTHS]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_table", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="one JSON line for each finished cell")
    parser.add_argument("--only", default="", help="only cells whose name contains this, such as 'v5e:4x4 base 128'")
    parser.add_argument("--markdown", action="store_true", help="print the table of the finished cells")
    parser.add_argument("--flops", action="store_true", help="compare XLA's FLOPs with the model's instead")
    parser.add_argument(
        "--unroll", action="store_true", help="layers without a loop; --markdown leaves these cells out"
    )
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        platform.configure_logging()
        platform.configure("cpu")
        if args.cell[0] == "flops":
            figures = compare_flops(args.cell[1])
        else:
            topology, preset, seq_len, *unrolled = args.cell
            figures = compile_cell(topology, preset, int(seq_len), unroll=bool(unrolled))
        figures["libtpu_init_args"] = os.environ.get("LIBTPU_INIT_ARGS", "").strip()
        resumable.append(args.out, {"cell": _key(*args.cell)} | figures)
    elif args.markdown:
        print(markdown(finished(args.out)))
    else:
        unrolled = ("unrolled",) * args.unroll
        cells = [("flops", preset) for preset in PRESETS] if args.flops else [(*cell, *unrolled) for cell in _cells()]
        for cell in cells:
            if args.only in _key(*cell) and _key(*cell) not in finished(args.out):
                _in_a_process(args.out.resolve(), *cell)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
