"""Console output: parameters and data at the start, samples at evaluations, a table at the end."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from bertjax.config.config import Config
from bertjax.data.coverage import label_shares, unread_share
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import LabeledExamples
from bertjax.data.labeled.questions import Questions
from bertjax.data.labeled.source import LabeledSource
from bertjax.data.pipeline import Feed, filled_up
from bertjax.models.config import EncoderConfig
from bertjax.models.kernels import implementation_at
from bertjax.models.taps import ATTENTION
from bertjax.models.vocabulary import count_leaf, count_parameters
from bertjax.objectives.base import Objective
from bertjax.objectives.distill.replacing import Replacing
from bertjax.objectives.finetuning import squad_metrics
from bertjax.objectives.finetuning.labels import Tagging
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import printable, shorten
from bertjax.training import stage_flops
from bertjax.training.config import ROTARY_BASES
from bertjax.training.evaluation import Evaluation
from bertjax.training.loss import count_micro_batches
from bertjax.training.param_paths import path_of
from bertjax.training.run.tables import Table
from bertjax.training.setup import Setup

_FOLDED_DEPTH = 3


def parameter_lines(params: Any, encoder: EncoderConfig, layers: str = "encoder/layers/") -> list[str]:
    """Return one line per module in the parameter tree, with parameter count and leaf shapes.

    Args:
      layers: path to print for the stacked layers; an optimizer from outside sees each by itself.
    """
    folded: dict[str, list[tuple[str, Any, Any]]] = {}
    for key_path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        parts = path_of(key_path).split("/")
        # At least the last part, the name of the array, stays outside the module.
        depth = min(_FOLDED_DEPTH, len(parts) - 1)
        folded.setdefault("/".join(parts[:depth]), []).append(("/".join(parts[depth:]), key_path, leaf))
    total = count_parameters(params, encoder)
    lines = [f"{total:,} parameters (the padding of the vocabulary not counted)"]
    width = max(map(len, folded))
    for module, leaves in folded.items():
        count = sum(count_leaf(key_path, leaf, encoder) for _, key_path, leaf in leaves)
        shapes = "  ".join(f"{name} {'x'.join(map(str, leaf.shape))}" for name, _, leaf in leaves)
        lines.append(f"  {module.replace('encoder/layers/', layers):<{width}}  {count:>12,}  {shapes}")
    return lines


def show_samples(step: int, evaluation: Evaluation) -> str:
    """Format an evaluation as text: metrics, and masked sentences with the best guesses."""
    parts = {"held out": evaluation} | ({"held out, moving average": evaluation.ema} if evaluation.ema else {})
    lines = [
        f"step {step}, {label}: " + ", ".join(f"{name} {value:.4f}" for name, value in part.of_all("metrics").items())
        for label, part in parts.items()
    ]
    for sample in evaluation.samples:
        lines.append(f"  {printable(sample.text)}")
        for answer, guesses in zip(sample.answers, sample.guesses, strict=True):
            right = "  (right)" if guesses[0] == answer else ""
            lines.append(f"    {printable(answer):>16} <- {printable('  '.join(guesses))}{right}")
    return "\n".join(lines)


def masked_sentence(samples: Sequence[Mapping[str, Any]]) -> str:
    """Return an example sentence with [MASK], taken from the samples unless they are plain ASCII.

    Samples with a broken character are left out. Masking replaces some tokens by random ones, and one that holds only a
    part of a character decodes to U+FFFD.

    Args:
      samples: samples from an evaluation, as in `samples.jsonl`.
    """
    parts = [part.strip() for sample in samples for part in re.split(r"\[CLS\]|\[SEP\]", sample["text"])]
    sentences = [part for part in parts if "\ufffd" not in part]
    letters = filter(str.isalpha, "".join(sentences))
    # ASCII letters suggest English, for which the default sentence will do.
    masked = [] if all(map(str.isascii, letters)) else [sentence for sentence in sentences if "[MASK]" in sentence]
    return min(masked, key=len, default="The [MASK] is old.")


def summary_of(
    evaluation: Evaluation, totals: Any, steps: int, goodput: dict[str, float], parameters: int
) -> dict[str, Any]:
    """Return results after an evaluation, in the layout of `summary.json`."""
    return {
        "parameters": parameters,
        "eval": evaluation.of_all("metrics"),
        **({"eval_ema": evaluation.ema.of_all("metrics")} if evaluation.ema else {}),
        "baseline": evaluation.of_all("baselines"),
        "tokens": totals.tokens,
        "flops": totals.flops,
        **({"trunk_tokens": totals.trunk_tokens} if totals.trunk_tokens else {}),
        "steps": steps,
        "seconds": totals.seconds,
        "tokens_per_second": (totals.tokens - totals.trunk_tokens) / totals.seconds,
        "accounts": goodput,
    }


def print_summary(summary: dict[str, Any]) -> None:
    """Print `summary_of` as a table."""
    evaluation, average, baseline = summary["eval"], summary.get("eval_ema", {}), summary["baseline"]
    rows = [
        (name, _number(value), _number(average.get(name)), *baselines_of(name, baseline))
        for name, value in evaluation.items()
    ]
    columns = zip(("", "model", "moving average", "unigram", "most frequent"), *rows)
    # Leave out columns without any number.
    titles, *rows = zip(*(column for index, column in enumerate(columns) if index < 2 or any(column[1:])))
    table = Table(*titles, title="held out, the same for model and baselines", justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if "seconds" in summary:
        trunk = summary.get("trunk_tokens", 0.0)
        of_trunk = f" after {trunk:,.0f} of the trunk" if trunk else ""
        speed = (
            f"{summary['steps']:,} steps, {summary['tokens'] - trunk:,.0f} tokens{of_trunk} in "
            f"{summary['seconds'] / 60:.1f} min "
            f"({summary['tokens_per_second']:,.0f} tokens/s, everything included)\n{_goodput_line(summary['accounts'])}"
        )
        console.print(speed, soft_wrap=True, highlight=False, markup=False)


def baselines_of(name: str, baseline: dict[str, float]) -> tuple[str, str]:
    """Return a metric's unigram and most-frequent baselines as text, each empty if there is none."""
    # Several tasks or held-out sets put a prefix before metric and baseline.
    task, slash, metric = name.rpartition("/")
    if metric in ("mlm_loss", "plm_loss", "clm_loss", "generator_loss"):
        return _number(baseline.get(f"{task}{slash}unigram_loss")), ""
    if metric in ("mlm_accuracy", "plm_accuracy", "clm_accuracy", "generator_accuracy", "accuracy", "token_accuracy"):
        return "", _number(baseline.get(f"{task}{slash}majority_accuracy"))
    return "", _number(baseline.get(f"{name.removesuffix('_accuracy')}_majority"))


def _goodput_line(goodput: dict[str, float]) -> str:
    kinds = ("step", "data_wait", "compile", "checkpoint", "evaluation")
    spent = ", ".join(f"{kind.replace('_', ' ')} {goodput[kind]:,.0f} s" for kind in kinds)
    utilization = [
        f"{name.replace('_', ' ')} {goodput[name]:.1%}" for name in ("mfu", "executed_mfu") if name in goodput
    ]
    share = f"{goodput['goodput']:.1%} of {goodput['wall']:,.0f} s are steps (the goodput)"
    return f"{', '.join([spent, *utilization])}; {share}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def layout_line(setup: Setup) -> str:
    """Describe devices, sharding, dtypes and attention implementations in one line."""
    layout = setup.layout
    backend = layout.mesh.devices.flat[0].platform
    axes = " x ".join(f"{axis}={size}" for axis, size in layout.mesh.shape.items() if size > 1)
    devices = f"{layout.mesh.size} {backend} device(s)" + (f" ({axes}, {layout.strategy})" if axes else "")
    summed = f", gradients summed in {layout.reduction}" if axes else ""
    lengths = {stage.seq_len: None for stage in setup.config.stages}
    paths = ", ".join(f"{implementation_at(setup.encoder.execution, length)} at {length} tokens" for length in lengths)
    attention = f"; attention: {paths}" if ATTENTION in setup.encoder.block.captures else ""
    return f"{devices}, {layout.dtype}{summed}{attention}"


def replacing_lines(config: Config) -> list[str]:
    """Return one line per module-replacing task: the step from which the student's layers run alone."""
    last, lines = sum(stage.steps for stage in config.stages) - 1, []
    for name, task in config.tasks.items():
        replacing = task.objective
        if not isinstance(replacing, Replacing):
            continue
        if (rate := replacing.rate(last)) < 1.0:
            lines.append(
                f"task {name}: the last step replaces a module of the teacher with probability {rate:.2f}, so the "
                f"student's layers never run alone; set tasks.{name}.objective.steps to about {last // 2:,}"
            )
        else:
            lines.append(f"task {name}: from step {replacing.steps:,} on the student's layers run alone")
    return lines


def stage_line(index: int, setup: Setup) -> str:
    """Describe a stage in one line: steps, shapes and what is frozen."""
    stage, shards = setup.config.stages[index], setup.layout.shards
    filled = filled_up(stage.batch, shards)
    parts = count_micro_batches(filled // shards, stage.seq_len, setup.config.runtime.micro_tokens)
    micro = f", {parts} micro-batches of {filled // shards // parts} rows a device" if parts > 1 else ""
    padding = f" (and {filled - stage.batch} of padding, for {shards} devices)" if filled > stage.batch else ""
    peak = f", a new learning rate peak of {stage.learning_rate:g}" if stage.learning_rate else ""
    turns = f", of {' and '.join(stage.tasks)}" if stage.tasks else ""
    held = [f"{stage.frozen_layers} lowest layers"] if stage.frozen_layers else []
    frozen = f", {' and '.join([*held, *stage.frozen])} frozen" if held or stage.frozen else ""
    masked = f", masking rate {stage.masking_rate:g}" if stage.masking_rate else ""
    masked = f", masking {stage.masking.kind} at {stage.masking.rate:g}" if stage.masking else masked
    bases = (f", {name.replace('_', ' ')} {base:g}" for name in ROTARY_BASES if (base := getattr(stage, name)))
    rows = f"{stage.steps:,} steps of {stage.batch:,} rows{padding} of {stage.seq_len} tokens"
    operations = f", {stage_flops.per_step(setup, index):.3g} FLOPs a step"
    return f"stage {index}: {rows}{operations}{turns}{micro}{peak}{masked}{''.join(bases)}{frozen}"


# If more text than this is lost, the output suggests a remedy.
_MUCH_LOST = 0.1
# Thresholds for warnings.
_MOST_UNREAD, _MOST_ONE_LABEL = 0.4, 0.75


def plan_line(feed: Feed, task: str, label: str = "") -> str:
    """Describe an epoch in one line: rows, examples per row, share of real tokens, and lost text.

    Args:
      feed: training feed.
      task: the task's name in the configuration.
      label: prefix that identifies the task if there are several.
    """
    plans = [source.plans[0] for source in feed.sources]

    def total(name: str) -> int:
        return sum(getattr(plan.counts, name) for plan in plans)

    rows, examples = total("rows"), plans[0].examples
    if isinstance(examples, LabeledExamples):
        cost = notes_of(examples)
    else:
        lost, repeated = (total(name) / total("split_tokens") for name in ("lost_tokens", "repeated_tokens"))
        cost = f"{lost:.1%} of the text cut away, {repeated:.1%} repeated"
        # Several plans already cut the text in different places.
        if lost > _MUCH_LOST and len(feed.sources[0].plans) == 1:
            cost += f"; --config.tasks.{task}.plans=8 cuts it in other places in other epochs"
    return (
        f"{_of(label)}{rows:,} rows of {feed.seq_len} tokens an epoch, {total('examples') / rows:.2f} examples a row, "
        f"{total('tokens') / (rows * feed.seq_len):.1%} real tokens ({cost})"
    )


def reading_warnings(feed: Feed, task: str) -> list[str]:
    """Warn about text that no epoch reads, and about pair labels that are nearly constant.

    Args:
      feed: training feed from a token store.
      task: the task's name in the configuration.
    """
    lines = []
    for source in feed.sources:
        if (unread := unread_share(source.plans)) > _MOST_UNREAD:
            lines.append(
                f"warning: {task}: {unread:.0%} of the training text is in no row of any epoch, because sentences are "
                f"longer than half a row; raise stages.0.seq_len or --config.tasks.{task}.plans={len(source.plans)}, "
                "see that data.splitter finds the sentences, or choose examples.kind=doc_sentences, which cuts no text"
            )
        examples = source.plans[0].examples
        if hasattr(examples, "label_counts") and _MOST_ONE_LABEL < (share := label_shares(source.plans[0]).max()) < 1:
            lines.append(
                f"warning: {task}: {share:.0%} of the pairs have the same label, so that it teaches little; see that "
                "data.splitter finds the sentences (with segment_pairs and long sentences, examples.fewest=2 helps)"
            )
    return lines


def sources_line(shares: Mapping[str, Mapping[str, float]], task: str = "") -> str:
    """Describe each source's share in training rows and tokens in one line; see `Feeds.source_shares`."""
    units = (
        f"of the {unit}: " + ", ".join(f"{name} {share:.1%}" for name, share in by_name.items())
        for unit, by_name in shares.items()
    )
    return f"{_of(task)}sources {'; '.join(units)}"


def heldout_line(feed: Feed, task: str = "") -> str:
    """Describe the held-out rows in one line."""
    # Held-out feeds have one plan: rows that vary would make evaluations incomparable.
    (plan,) = feed.plans
    cost = f" ({notes_of(plan.examples)})" if isinstance(plan.examples, LabeledExamples) else ""
    return f"{_of(task)}held out: {plan.counts.rows:,} rows, {plan.counts.examples:,} examples{cost}"


def labeled_lines(files: LabeledSource, objective: Objective, repeated: int, task: str = "") -> list[str]:
    """Describe labeled files: class counts, how metrics count, and texts that training and held-out files share.

    Args:
      files: the files.
      objective: what is trained on them.
      repeated: number of held-out records with texts of the training file.
      task: prefix that identifies the task if there are several.
    """
    lines = [f"{_of(task)}{line}" for line in (*files.class_lines, *metric_lines(files, objective))]
    if repeated:
        lines.append(
            f"warning: {_of(task)}{repeated:,} held-out records have texts that the training file has too; they score "
            "higher than new texts would"
        )
    return lines


def metric_lines(files: LabeledSource, objective: Objective) -> list[str]:
    """Describe how metrics count, if that depends on the files."""
    objective = unwrapped(objective)
    if isinstance(objective, Tagging) and not objective.marks_entities:
        line = (
            "the tags are in no scheme of entities (IOB, IOBES, BILOU, BMES, such as B-PER): only token_accuracy is "
            "reported, and no F1 of entities"
        )
        if misfits := label_names.misfits(objective.classes):
            names = shorten(list(map(repr, misfits)))
            return [f"warning: {line}, because of {names} among the tags; words outside of entities have the tag O"]
        if all(map(str.isdecimal, objective.classes)):
            line += "; numbers do not show which tags mark entities, so write their names"
        return [line]
    return squad_metrics.lines(files.heldout) if isinstance(files.format, Questions) else []


def _of(task: str) -> str:
    return f"{task}: " if task else ""


def notes_of(examples: LabeledExamples) -> str:
    """Return how many records were cut, skipped or split."""
    return ", ".join(f"{count:,} {what}" for what, count in examples.notes.items()) or "nothing cut or left out"
