"""python -m bertjax.evaluate: scores a run, a checkpoint or an export on held-out text."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bertjax import errors, opening
from bertjax.data.config import TokenizerConfig
from bertjax.data.preparation import open_or_prepare
from bertjax.errors import UserError
from bertjax.training import platform, report
from bertjax.training.config import MeshConfig
from bertjax.training.evaluation import Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.program import Program


def run(name: str, corpus: str = "") -> dict[str, Any]:
    """Scores a model on the held-out documents of a corpus, with fixed masks.

    Args:
      name: an export folder, a workdir `RUN` (its newest checkpoint) or `RUN@STEP`.
      corpus: as in `data.corpus`; the model's own by default. Whether a document is held out depends on its content
        alone, so no document that was trained on is scored where the share held out is the same; a run with a file of
        held-out documents (`data.heldout`) trained on all of its corpus.

    Returns:
      {`eval`: {metric: value}, `baseline`: {metric: value}}.

    Raises:
      UserError: no such model or corpus, a model without heads, or a corpus whose store has another tokenizer.
    """
    model = opening.open_model(name)
    config = model.config
    if corpus:
        tokenizer = TokenizerConfig(model=str(_tokenizer_folder(name)))
        data = dataclasses.replace(config.data, corpus=corpus, sources={}, heldout="", tokenizer=tokenizer)
        config = dataclasses.replace(config, data=data)
    # How the run was carried out does not matter here: any machine scores it.
    runtime = dataclasses.replace(config.runtime, mesh=MeshConfig(), strategy="auto", attention="auto")
    config = dataclasses.replace(config, runtime=runtime)
    program = Program(config, model.tokenizer.vocab_size)
    heads = (params.get("heads", {}).keys() for params in (program.abstract_state["params"], model.params))
    if missing := set.difference(*map(set, heads)):
        raise UserError(f"{name} has no head {', '.join(sorted(missing))} to be scored; it is an encoder alone")
    store = open_or_prepare(config.data, may_prepare=True)
    if store.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise UserError(
            f"the tokenizer of {name} is not that of {store.path}; score it with --corpus={config.data.corpus}"
        )
    params = program.put(model.params)
    evaluation = Evaluator(program, store, Feeds(config, store).heldout)(params)
    return {"eval": evaluation.metrics, "baseline": evaluation.baselines}


def _tokenizer_folder(name: str) -> Path:
    return Path(opening.split_name(name)[0]) / "tokenizer"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = errors.ArgumentParser(
        prog="python -m bertjax.evaluate",
        description="Scores a run, a checkpoint or an export on the held-out documents of a corpus.",
        epilog="examples: python -m bertjax.evaluate runs/tiny/export    python -m bertjax.evaluate runs/tiny@3500 "
        "--corpus=my/texts --json",
        allow_abbrev=False,
    )
    parser.add_argument("model", help="an export folder, a workdir (its newest checkpoint), or WORKDIR@STEP")
    parser.add_argument("--corpus", default="", help="what to score on (default: the corpus of the run)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    platform.add_flag(parser)
    args = parser.parse_args(argv)
    platform.configure_logging()
    platform.configure(args.platform)
    with contextlib.redirect_stdout(
        sys.stderr
    ):  # a corpus that is prepared on the way says so; --json prints JSON alone
        figures = run(args.model, args.corpus)
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        report.print_summary(figures)
    return 0


if __name__ == "__main__":
    sys.exit(errors.exit_code_of(main))
