"""The list of mutants keeps up with the code."""

import pytest

from benchmarks.mutation.mutants import MUTANTS
from tests import runs

ROOT = runs.CONFIG.parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_put_into_the_code_of_today(mutant):
    assert (ROOT / "bertjax" / mutant.file).read_text(encoding="utf-8").count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert [path for path in mutant.tests.split() if not (ROOT / "tests" / path).exists()] == []
