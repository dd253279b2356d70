"""Check row and example lengths against the position table. Positions restart in each example of a packed row."""

import copy
import logging
from collections.abc import Container, Mapping, Sequence
from typing import Any

from bertjax.config import typed
from bertjax.data.formats import FORMATS, ExampleFormat
from bertjax.models.config import UNIONS, EncoderConfig
from bertjax.runtime.errors import UserError
from bertjax.training.config import Stage

log = logging.getLogger(__name__)


def longest_example(model: EncoderConfig, stages: Sequence[Stage], formats: Mapping[str, ExampleFormat]) -> int:
    """Return the maximum example length in tokens over all stages.

    Args:
      formats: {task: example format}.

    Raises:
      UserError: the encoder's position table is shorter, or a row cannot hold a whole example.
    """
    longest, limit = 0, model.max_positions
    for index, stage in enumerate(stages):
        for name in stage.among(formats):
            tokens = formats[name].longest(stage.seq_len)
            if model.embeddings.has_position_table and tokens > limit:
                row, bound = f"stages.{index}.seq_len", f"tasks.{name}.examples.max_tokens={limit}"
                raise UserError(
                    f"{row}={stage.seq_len} exceeds model.max_positions={limit}; lower {row} or raise "
                    f"model.max_positions, or pack shorter examples: {bound}"
                    if tokens == stage.seq_len
                    else f"{row}={stage.seq_len} allows examples of {tokens} tokens in tasks.{name}, and "
                    f"model.max_positions={limit}; set {bound}, or lower {row}"
                )
            # A row that cannot hold one example would give an empty plan.
            if tokens < (shortest := formats[name].shortest):
                raise UserError(
                    f"stages.{index}.seq_len={stage.seq_len} leaves {tokens} tokens for an example of tasks.{name}, "
                    f"which has at least {shortest}; raise it, or tasks.{name}.examples.max_tokens"
                )
            longest = max(longest, tokens)
    return longest


def fit(mapping: dict[str, Any], overridden: Container[str]) -> dict[str, Any]:
    """Lower row lengths to what the `init_from` encoder can read, with a warning.

    Recipes are written for long encoders. Format settings in tokens, such as the window stride, are lowered in
    proportion.

    Args:
      mapping: the configuration as plain dicts; `model` has the encoder's settings.
      overridden: settings from the command line, which stay; `longest_example` refuses them if they are too long.

    Returns:
      The configuration.
    """
    mapping = copy.deepcopy(mapping)
    encoder = typed.build(EncoderConfig, mapping["model"], "model", UNIONS)
    stages, tasks, limit = mapping.get("stages"), mapping.get("tasks"), encoder.max_positions
    if not (encoder.embeddings.has_position_table and isinstance(stages, (list, tuple)) and isinstance(tasks, dict)):
        return mapping
    lowered: dict[str, str] = {}

    def lower(settings: dict[str, Any], path: str, field: str, before: int, after: int) -> None:
        if after < before and f"{path}.{field}" not in overridden:
            settings[field], lowered[f"{path}.{field}"] = after, f"{path}.{field}={after} (not {before})"

    for name, task in tasks.items():
        path, settings = f"tasks.{name}.examples", task.get("examples") if isinstance(task, dict) else None
        if not isinstance(settings, dict):
            continue
        examples = typed.build(ExampleFormat, settings, path, {FORMATS.base: FORMATS.choice(trust_code=True)})
        for index, stage in enumerate(stages):
            seq_len = stage.get("seq_len", Stage.seq_len) if isinstance(stage, dict) else None
            # A row may be longer than the position table if its examples are short enough.
            if not isinstance(seq_len, int) or (longest := examples.longest(seq_len)) <= limit:
                continue
            # Lists of choices and pairs of texts put several examples into a row: scale it by its longest example.
            lower(stage, f"stages.{index}", "seq_len", seq_len, seq_len * limit // longest)
            if f"stages.{index}.seq_len" in lowered:
                for field in examples.token_settings:
                    tokens = getattr(examples, field)
                    lower(settings, path, field, tokens, max(1, tokens * limit // longest))
    if lowered:
        changes = ", ".join(lowered.values())
        log.warning("%s reads examples of at most %d tokens: %s", mapping.get("init_from"), limit, changes)
    return mapping
