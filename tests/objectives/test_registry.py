"""Objectives by their kind, and names that are not kinds."""

import dataclasses
import sys

import pytest

from bertjax.data.masking import MASKINGS
from bertjax.models.blocks import BLOCKS
from bertjax.models.embeddings import EMBEDDINGS
from bertjax.objectives import KINDS, OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.training.schedules import SCHEDULES


@dataclasses.dataclass(frozen=True)
class Elsewhere(Objective):
    """An objective of someone else's module."""


@pytest.mark.parametrize("objective", [MaskedLM(), BERT(), Elsewhere()])
def test_the_kind_of_an_objective_leads_back_to_its_class(objective):
    assert OBJECTIVES.class_of(OBJECTIVES.kind_of(objective)) is type(objective)


@pytest.mark.parametrize(
    "kind, message",
    [
        (
            "nope",
            f"^objective.kind='nope' is unknown; choose one of {', '.join(KINDS)}, or name module:Class$",
        ),
        ("no_such_module:X", "cannot be imported: No module named 'no_such_module'; is its folder on PYTHONPATH"),
        ("bertjax.objectives.pretraining.mlm:Nothing", "cannot be used: .* has no class 'Nothing'"),
        (
            "bertjax.objectives.pretraining.mlm:token_terms",
            "is not a subclass of Objective; derive it from bertjax.objectives.base.Objective$",
        ),
        ("bertjax.objectives.pretraining.mlm:MaskedLm", "has no class 'MaskedLm'; did you mean 'MaskedLM'[?]$"),
        (":", "cannot be imported: ValueError: Empty module name"),
        (".relative:X", "cannot be imported: TypeError: "),
    ],
)
def test_unknown_kinds_are_errors(kind, message):
    with pytest.raises(UserError, match=message):
        OBJECTIVES.class_of(kind, trust_code=True)


@pytest.mark.parametrize(
    "code, line, error",
    [
        ("import nosuchlib", 1, "ModuleNotFoundError: No module named 'nosuchlib'"),
        ("import json\nX = json.no_such_thing", 2, "AttributeError: module 'json' has no attribute 'no_such_thing'"),
        ("import json\n\ndef f(:", 3, "SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path, monkeypatch, code, line, error):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_objective.py").write_text(code)
    with pytest.raises(UserError) as caught:
        OBJECTIVES.class_of("failing_objective:X", trust_code=True)
    message = str(caught.value)
    assert f"cannot be imported: {tmp_path / 'failing_objective.py'}:{line}: {error}" in message
    assert message.endswith("; correct the file") and "\n" not in message


@pytest.mark.parametrize("kind", ["idlelib.idle:X", ":", ".relative:X", "a b:X"])
def test_a_module_that_is_not_imported_needs_trust(kind):
    with pytest.raises(Untrusted, match=f"^objective.kind='{kind}' asks to import .* add --trust-code") as caught:
        OBJECTIVES.class_of(kind)
    assert "\n" not in str(caught.value)
    assert kind.partition(":")[0] not in sys.modules


@pytest.mark.parametrize("union", [MASKINGS, SCHEDULES, BLOCKS, EMBEDDINGS])
def test_what_a_file_names_is_not_imported(union):
    """A file that names a module must not make its reader import it."""
    with pytest.raises(Untrusted, match=f"^{union.setting}.kind='nowhere.evil:X' asks to import .* add --trust-code"):
        union.class_of("nowhere.evil:X")
