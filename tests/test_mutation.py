"""The list of mutants keeps up with the code."""

from benchmarks.mutation.mutants import MUTANTS, Mutant
from tests import runs

ROOT = runs.CONFIG.parents[1]


def test_mutants_can_be_put_into_the_code_of_today():
    assert [mutant.name for mutant in MUTANTS if mutant.before == mutant.after] == []
    assert [mutant.name for mutant in MUTANTS if _text_of(mutant).count(mutant.before) != 1] == []
    paths = {path for mutant in MUTANTS for path in mutant.tests.split()}
    assert [path for path in paths if not (ROOT / "tests" / path).exists()] == []


def _text_of(mutant: Mutant) -> str:
    return (ROOT / "bertjax" / mutant.file).read_text(encoding="utf-8")
