"""`bertjax COMMAND`, or `python -m bertjax COMMAND` where the console script is not in the path."""

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import bertjax
from bertjax.runtime.command_line import command, exit_code_of
from bertjax.runtime.errors import UserError

# Commands by what a user wants to do, each with one line of help. Each is a module of `bertjax.cli`.
COMMANDS = {
    "pretrain and fine-tune": {
        "prepare": "train a tokenizer and write a corpus as a token store",
        "train": "train an encoder from one configuration; the same command resumes a stopped run",
        "compile": "forecast memory and time of a configuration on a TPU, without one",
        "status": "list runs with their steps and states",
    },
    "use": {
        "predict": "classify, tag, answer, fill [MASK], or turn texts into vectors",
        "evaluate": "score a model on held-out texts, a labeled file or minimal pairs",
        "bench": "measure the time of a text and the texts a second, by batch and threads",
        "serve": "answer over HTTP with an ONNX file, without JAX",
        "augment": "write variants of texts for a student to train on",
    },
    "understand": {
        "report": "write the page of a run or of a token store",
        "compare": "settings, results and curves of several runs side by side",
        "analyze": "look inside models: attention, layers, heads, importance",
        "probe": "measure what each layer encodes",
    },
    "change and share": {
        "convert": "convert a model of transformers to bertjax and back, or to ONNX",
        "merge": "average checkpoints of a run, or models with a common start",
        "extend": "add words, a second vocabulary or positions to a model",
        "compress": "cut layers, heads, neurons or pieces, or round weights to int8",
        "push": "publish a model on the Hugging Face Hub",
    },
}
_NAMES = [name for commands in COMMANDS.values() for name in commands]


def overview() -> str:
    """Return the commands as a table, by purpose."""
    lines = ["usage: python -m bertjax COMMAND [flags]        python -m bertjax COMMAND --help"]
    for purpose, commands in COMMANDS.items():
        lines += ["", f"{purpose}:", *(f"  {name:<10}{text}" for name, text in commands.items())]
    return "\n".join([*lines, "", f"start here: {command('train', '--config=tiny')}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      argv: the command and its flags; None for those of this process.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return exit_code_of(lambda: print(overview()))
    if arguments[0] == "--version":
        return exit_code_of(lambda: print(f"bertjax {bertjax.__version__}"))
    name = arguments[0]
    if name not in _NAMES:
        return exit_code_of(lambda: _refuse(name))
    sys.argv[1:] = arguments[1:]
    if name == "train" and argv is None:
        _restart_with_faster_malloc(arguments)
    # Each command imports what it needs: `status` starts neither JAX nor Grain.
    try:
        module = importlib.import_module(f"bertjax.cli.{name}")
    except ModuleNotFoundError as error:
        missing = str(error.name)
        return exit_code_of(lambda: _lack(name, missing))
    if name == "train":  # the one command that may be several processes, which leave together
        from bertjax.training.parallel.processes import leave

        return leave(lambda: exit_code_of(module.main))
    return exit_code_of(lambda: _run(name, module.main))


def _restart_with_faster_malloc(arguments: Sequence[str]) -> None:
    """Restart this process for a training, before seconds of imports; a command that only prints stays."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--platform")
    try:
        known, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        return  # the command's own parser says it
    if not any(flag.startswith(("-h", "--h", "--settings")) for flag in others):
        from bertjax.runtime.platform import restart_with_huge_pages

        restart_with_huge_pages(known.platform)


# What a server for ONNX files does not have, and commands on other models import first.
_ENGINE = ("jax", "jaxlib", "flax", "optax")


def _run(name: str, command: Callable[[], int]) -> int:
    try:
        return command()
    except ModuleNotFoundError as error:
        if error.name not in _ENGINE:  # others are optional or of a user, and have messages of their own
            raise
        missing = error.name
    return _lack(name, missing)


def _lack(name: str, package: str) -> NoReturn:
    """Report a missing package, as on a server that has only what ONNX files need."""
    raise UserError(f"{name} needs the package {package}; install bertjax with all it needs, without --no-deps")


def _refuse(name: str) -> None:
    if not name:
        raise UserError("the command is empty; remove the argument, or set the variable that it comes from")
    if name.startswith("--"):
        raise UserError(f"a command comes before {name}, as in {command('train', name)}")
    near = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {command(near[0])}?" if near else f"{command('--help')} lists the commands"
    raise UserError(f"{name!r} is not a command; {hint}")


if __name__ == "__main__":
    sys.exit(main())
