"""Compile the training step for an absent TPU, and forecast memory, time per step and communication.

No corpus is read.

examples:
  memory and time of a step:    python -m bertjax compile --config=configs/bert_base.py --topology=v5e:4x4
  two slices to choose from:    python -m bertjax compile --config=configs/bert_base.py --topology=v5e:4x4 \\
                                    --topology=v4-32
  the best strategy that fits:  python -m bertjax compile --config=configs/bert_large.py --topology=v5e:4x4 --search
"""

import argparse
import json
import logging
import shlex
from collections.abc import Sequence

from bertjax.config import config_file
from bertjax.config.config import Config
from bertjax.forecast import report, topologies
from bertjax.forecast.cost import cost_of, shape_of
from bertjax.forecast.forecast import Forecast, best, forecast_step, search
from bertjax.runtime import command_line, platform
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed
from bertjax.training.trace_checks import checked_setups

_ASSUMED_MFU = 0.4  # for the projected days only; what a run reaches has to be measured

log = logging.getLogger(__name__)


def run(config: Config, topology: str, stage: int | None = None) -> list[Forecast]:
    """Compile the training step for absent chips.

    Args:
      config: the configuration. No corpus is read; the vocabulary has its configured size.
      topology: name of the chips, such as `v5e:16x16`, `2xv5e:16x16` or `v4-32`.
      stage: index of the only stage to compile; by default, one stage per distinct shape (`cost.shape_of`).

    Returns:
      One forecast per task and compiled stage, in order.

    Raises:
      UserError: the topology or stage is unknown, a setting depends on data, the devices do not divide the batch, or
        libtpu is not installed.
      RunFailed: the compiler fails for a reason other than memory.
    """
    _check_resolved(config)
    chips = topologies.parse(topology)
    indices = _distinct(config) if stage is None else [_checked(config, stage)]
    setups = checked_setups(config, config.expected_vocab_size, chips.devices())
    forecasts = []
    for index in indices:
        at = config.stages[index]
        for task in at.among(config.tasks):
            log.info("compiling stage %d (%s, %d rows x %d tokens) for %s", index, task, at.batch, at.seq_len, chips)
            forecasts.append(forecast_step(setups[index], chips, index, task))
            log.info("%s", report.one_line(forecasts[-1]))
    return forecasts


def _check_resolved(config: Config) -> None:
    if not config.open_settings:
        return
    setting, *_ = config.open_settings
    parent, _, name = setting.rpartition(".")
    remedies = {
        "epochs": f"--config.{parent}.epochs=0 --config.{parent}.steps=N",
        "flops": f"--config.{parent}.flops=0 --config.{parent}.steps=N",
        "examples": f"--config.{parent}.examples=0 --config.{parent}.batch=N",
        "classes": f"""--config.{setting}="['one','two']" with as many names as there are classes""",
        "weight": f"--config.{setting}=1",
        "learning_rate": f"--config.{setting}=1e-4",
    }
    raise UserError(f"{setting} depends on the data, which compile does not read; add {remedies[name]}")


def _distinct(config: Config) -> list[int]:
    """Return one stage index per distinct program: stages with equal shapes compile to the same step."""
    first = {}
    for index in range(len(config.stages)):
        first.setdefault(shape_of(config, index), index)
    return list(first.values())


def _checked(config: Config, stage: int) -> int:
    if not 0 <= stage < len(config.stages):
        raise UserError(f"--stage={stage} does not exist; the configuration has stages 0 to {len(config.stages) - 1}")
    return stage


def _run_search(config: Config, args: argparse.Namespace) -> int:
    _check_resolved(config)
    if len(args.topology) > 1:
        raise UserError(
            f"--search tries many settings for one --topology, and there are {len(args.topology)}; keep one"
        )
    chips = topologies.parse(*args.topology)
    stages = config.stages
    # The stage with the most tokens per batch needs the most memory: settings that fit there usually fit elsewhere.
    largest = max(range(len(stages)), key=lambda index: stages[index].batch * stages[index].seq_len)
    index = largest if args.stage is None else _checked(config, args.stage)
    tried = []
    for forecast in search(config, chips, index):
        tried.append(forecast)
        log.info("%s", report.one_line(forecast))
    winner = best(tried)
    cost = winner and cost_of([winner], config, args.mfu, args.corpus_tokens, [index])
    if args.json:
        chosen = None if winner is None else tried.index(winner)
        found = {"tried": [report.as_dict(one) for one in tried], "best": chosen}
        print(json.dumps(found | {"run": cost and cost.as_dict()}, indent=2))
    elif winner is None:
        print(f"no combination fits {chips}; use a smaller batch or more chips")
    else:
        print(report.as_text(winner))
        print(cost.as_text(whole=len(stages) == 1))
        print(f"best         {shlex.join(report.flags(winner))}")
    return 0 if winner else 1


def _print(forecasts: Sequence[Forecast], config: Config, args: argparse.Namespace) -> None:
    cost = cost_of(forecasts, config, args.mfu, args.corpus_tokens, None if args.stage is None else [args.stage])
    if args.json:
        plain = [report.as_dict(forecast) for forecast in forecasts]
        print(json.dumps({"forecasts": plain, "run": cost.as_dict()}, indent=2))
    else:
        print("\n\n".join(report.as_text(forecast) for forecast in forecasts))
        print(cost.as_text(whole=args.stage is None), flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit code is 1 if a stage does not fit into memory of one of the topologies."""
    parser = command_line.ArgumentParser("compile", __doc__)
    config_file.add_flags(parser)
    parser.add_flags(
        {
            "--topology=NAME": "chips to compile for: v5e:16x16, 2xv5e:16x16 (two slices), or an accelerator type "
            "such as v4-32; may be repeated, and --json then prints an object for each"
        },
        required=True,
        action="append",
    )
    parser.add_flags(
        {"--stage=N": "index of the only stage to compile (default: one of each distinct shape)"}, type=int
    )
    parser.add_flags(
        {
            "--search": "try strategies, remat and micro-batches for the largest stage (or --stage), and print the "
            "best that fits",
            "--json": "print only JSON",
        },
        action="store_true",
    )
    parser.add_flags({"--corpus-tokens=N": "corpus size in tokens; also prints epochs"}, type=float)
    parser.add_flags(
        {"--mfu=SHARE": "model FLOPs utilization that is assumed for the projected days (default: %(default)s)"},
        type=float,
        default=_ASSUMED_MFU,
    )
    args, overrides = config_file.parse(parser, argv)
    Allowed(above=0, most=1).check("--mfu", args.mfu)
    if args.corpus_tokens is not None:
        Allowed(above=0).check("--corpus-tokens", args.corpus_tokens)
    platform.configure("cpu")  # the compiler needs no device, and a local one may belong to a training run
    config = config_file.load(args.config, overrides)
    if args.search:
        return _run_search(config, args)
    for topology in args.topology:
        topologies.parse(topology)  # before minutes are spent on another one
    fits = True
    for topology in args.topology:
        forecasts = run(config, topology, args.stage)
        _print(forecasts, config, args)
        fits = fits and all(forecast.memory.fits for forecast in forecasts)
    return 0 if fits else 1
