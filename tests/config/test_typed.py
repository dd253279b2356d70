"""Nested mappings become typed dataclasses, and mistakes are reported with their remedy."""

import dataclasses

import pytest

from bertjax.config.registry import Choice
from bertjax.config.typed import build, differences, override
from bertjax.runtime.errors import UserError


class Shape:
    """A union."""


@dataclasses.dataclass(frozen=True)
class Square(Shape):
    side: float = 1.0


@dataclasses.dataclass(frozen=True)
class Circle(Shape):
    radius: float = 1.0
    kind: str = "circle"


@dataclasses.dataclass(frozen=True)
class Picture:
    count: int = 1
    scale: float = 1.0
    filled: bool = False
    name: str = ""
    sizes: tuple[int, ...] = ()
    limit: int | None = None
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)


CLASSES = {None: Square, "square": Square, "circle": Circle}


def picture(**fields) -> Picture:
    return build(Picture, fields, "", {Shape: Choice(CLASSES.__getitem__, ("circle", "square"))})


def test_values_become_what_the_fields_declare():
    built = picture(
        count=3, scale=2, filled=True, name="x", sizes=[1, 2], shapes={"a": {"kind": "circle", "radius": 2}, "b": {}}
    )
    assert built == Picture(3, 2.0, True, "x", (1, 2), None, {"a": Circle(2.0), "b": Square()})
    assert type(built.scale) is float
    assert picture(limit=None).limit is None and picture(limit=3).limit == 3


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"count": 1.5}, "count=1.5 is float; it must be an integer"),
        ({"limit": "3"}, "limit='3' is str; it must be an integer"),
        ({"count": True}, "count=True is bool; it must be an integer"),
        ({"count": "3"}, "count='3' is str; it must be an integer"),
        ({"scale": "big"}, "scale='big' is str; it must be a number"),
        ({"scale": False}, "scale=False is bool; it must be a number"),
        ({"filled": 1}, "filled=1 is int; it must be True or False"),
        ({"name": 7}, """name=7 is int; it must be text, as "'7'\""""),
        ({"name": None}, "name=None is nothing; it must be text"),
        ({"sizes": "12"}, "sizes='12' is str; it must be a list"),
        ({"sizes": [1, "2"]}, "sizes.1='2' is str; it must be an integer"),
        ({"shapes": 3}, "shapes=3 is int; it must be settings by name"),
        ({"shapes": {"a": 3}}, "shapes.a=3 is int; it must be settings by name"),
        ({"shapes": {"a": {"side": "x"}}}, "shapes.a.side='x' is str; it must be a number"),
        ({"cuont": 1}, "unknown configuration key 'cuont'; did you mean 'count'?"),
        ({"shapes": {"a": {"sides": 1}}}, "unknown configuration key 'shapes.a.sides'; did you mean 'side'?"),
        # A setting of another kind names it; `kind` is never the nearest name.
        (
            {"shapes": {"a": {"radius": 1}}},
            "unknown configuration key 'shapes.a.radius'; 'radius' is a setting of shapes.a.kind=circle; add "
            "--config.shapes.a.kind=circle",
        ),
        ({"shapes": {"a": {"kin": 1}}}, "unknown configuration key 'shapes.a.kin'; known are kind, side"),
        (
            {"zzz": 1},
            "unknown configuration key 'zzz'; known are count, filled, limit, name, scale, shapes, sizes",
        ),
    ],
)
def test_mistakes_are_reported_with_their_remedy(fields, message):
    with pytest.raises(UserError) as error:
        picture(**fields)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "assignment, expected",
    [
        ("seed=3", {"stages": [{"steps": 1}, {"steps": 2}], "seed": 3}),
        ("stages.1.steps=7", {"stages": [{"steps": 1}, {"steps": 7}]}),
        ("stages.0={'steps': 9}", {"stages": [{"steps": 9}, {"steps": 2}]}),
        ("stages=[]", {"stages": []}),
        ("a.b.c=1e-3", {"stages": [{"steps": 1}, {"steps": 2}], "a": {"b": {"c": 1e-3}}}),
        ("a=embedded:ko", {"stages": [{"steps": 1}, {"steps": 2}], "a": "embedded:ko"}),
        ("a=x=y", {"stages": [{"steps": 1}, {"steps": 2}], "a": "x=y"}),
        ("a=", {"stages": [{"steps": 1}, {"steps": 2}], "a": ""}),
        ("a=True", {"stages": [{"steps": 1}, {"steps": 2}], "a": True}),
    ],
)
def test_overrides(assignment, expected):
    mapping = {"stages": [{"steps": 1}, {"steps": 2}]}
    override(mapping, assignment)
    assert mapping == expected


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("seed", "override 'seed' has no value; write --config.seed=VALUE"),
        ("=3", "override '=3' has no value; write --config.KEY=VALUE"),
        ("stages.2.steps=1", "override 'stages.2.steps': '2' is not an index of a list of 2; use 0 to 1"),
        ("stages.x=1", "override 'stages.x': 'x' is not an index of a list of 2; use 0 to 1"),
        ("stages.-1.steps=1", "override 'stages.-1.steps': '-1' is not an index of a list of 2; use 0 to 1"),
        ("seed.a=1", "override 'seed.a=1': 'seed' is a value and has no settings; see the names in config.json"),
    ],
)
def test_bad_overrides(assignment, message):
    with pytest.raises(UserError) as error:
        override({"stages": [{"steps": 1}, {"steps": 2}], "seed": 0}, assignment)
    assert str(error.value) == message


def test_differences_name_the_leaves():
    old = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "gone": 0}
    new = {"a": 1, "b": {"c": [1, 3], "d": "y"}, "new": [1]}
    assert differences(old, new) == ["b.c.1: 2 -> 3", "b.d: 'x' -> 'y'", "gone: 0 -> None", "new: None -> [1]"]
    assert differences(old, old) == []
    assert differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1] -> [1, 2]"]
