"""Settings say which values they take: every bound and every choice of every setting is checked, in the same words."""

import dataclasses
import inspect
import math
import typing
from collections.abc import Iterator

import pytest

from bertjax.config.config import CONFIG_UNIONS, Config
from bertjax.data.config import DataConfig, SourceConfig
from bertjax.models.blocks import Block
from bertjax.models.config import EncoderConfig
from bertjax.models.embeddings import Embeddings
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed
from bertjax.training.config import Stage
from bertjax.training.optim.config import Multiplier, OptimizerConfig


def classes(kind: type) -> Iterator[type]:
    """Yield the dataclasses of settings below one of them, and all members of unions."""
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)) if typing.get_origin(hint) is not typing.ClassVar else ():
            if dataclasses.is_dataclass(part) and part.__module__.startswith("bertjax") and part is not kind:
                yield from classes(part)
    if kind is Config:
        yield from (union.class_of(kind) for union in CONFIG_UNIONS for kind in union.kinds)


def beyond(allowed: Allowed, default: object) -> Iterator[object]:
    """Yield values that are not allowed."""
    if allowed.choices:
        yield "no such"
    bounds = {"least": -1, "above": 0, "most": 1, "below": 0}
    for name, step in bounds.items():
        if (bound := getattr(allowed, name)) is not None and bound + step != default:
            yield bound + step


def cases() -> Iterator[tuple[type, str, object]]:
    for kind in filter(lambda kind: not inspect.isabstract(kind), dict.fromkeys(classes(Config))):
        hints = typing.get_type_hints(kind)
        for field in filter(lambda field: field.init, dataclasses.fields(kind)):
            values = [*beyond(field.metadata.get("allowed", Allowed()), field.default)]
            values += [math.nan, math.inf] * (float in (hints[field.name], *typing.get_args(hints[field.name])))
            for value in values:
                as_list = (value,) if isinstance(field.default, tuple) else value
                yield kind, field.name, {"words": value} if typing.get_origin(hints[field.name]) is dict else as_list


def use(settings: object) -> None:
    """Put settings where they are checked, unless they check themselves when they are made."""
    if isinstance(settings, Block):
        EncoderConfig(block=settings)
    elif isinstance(settings, Embeddings):
        EncoderConfig(embeddings=settings)
    elif isinstance(settings, Stage):
        settings.check("stages.0")
    elif isinstance(settings, SourceConfig):
        DataConfig(sources={"a": settings})
    elif isinstance(settings, Multiplier):
        OptimizerConfig(multipliers=(settings,))


REQUIRED = {"corpus": "a", "path": "a", "against": ("a",), "lexicon": "mine"}


@pytest.mark.parametrize(("kind", "name", "value"), list(cases()))
def test_every_bound_of_every_setting_is_checked(kind, name, value):
    required = {field.name: REQUIRED[field.name] for field in dataclasses.fields(kind) if field.name in REQUIRED}
    if "objective" in {field.name for field in dataclasses.fields(kind)} and kind is not Config:
        required["objective"] = CONFIG_UNIONS[0].class_of("mlm")()
    with pytest.raises(UserError, match=rf"\b{name}(\.0|\.words)?={value[0] if isinstance(value, tuple) else ''}"):
        use(kind(**required | {name: value}))


NEEDING = [
    (kind, field.name, field.metadata["allowed"])
    for kind in dict.fromkeys(classes(Config))
    for field in dataclasses.fields(kind)
    if "allowed" in field.metadata and field.metadata["allowed"].needs
]


@pytest.mark.parametrize(("kind", "name", "allowed"), NEEDING)
def test_a_setting_without_what_it_needs_is_refused(kind, name, allowed):
    default = next(field.default for field in dataclasses.fields(kind) if field.name == name)
    other = (
        {"kernels": "key", "layer_bits": (4,), "sharing_groups": 2}.get(name) or default * 0.9375 or allowed.least + 1
    )
    with pytest.raises(UserError, match=rf"\b{name}=.* has no effect without .*{allowed.needs}; set both"):
        use(kind(**{name: type(default)(other)}))
