"""The numbers of docs/guides/running.md: which faults the tests inject, in which phase, and how many bad inputs."""

import ast
import importlib
import math
import re
from pathlib import Path

import pytest

from tests.faults import test_foreign_files as foreign_files
from tests.faults import test_phases as phases
from tests.launch.test_preemptions import EVENTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "running.md"
FAULTS = (
    "kill -9, SIGTERM, hang, ENOSPC, EIO, 403, 404, 503, slow, torn write, flipped bit, wrong replica, clock jump, "
    "lost lease, other versions, moved corpus"
).split(", ")
PHASES = ("start", "prepare", "restore", "step", "evaluation", "save", "export")

# (fault, phase, processes): test. They end in the bits of a run that nothing disturbed, at once or when the same
# command runs again.
SURVIVED = {
    ("kill -9", "step", 1): "tests/faults/test_stops.py::test_killed_and_equal_bit_for_bit",
    **{
        (fault, phase, 2): "tests/faults/test_many_processes.py::"
        "test_stopped_and_each_of_two_killed_and_equal_bit_for_bit"
        for fault, phase in (("SIGTERM", "step"), ("kill -9", "step"), ("moved corpus", "start"))
    },
    ("kill -9", "save", 1): "tests/faults/test_adversity.py::test_a_kill_during_a_save",
    ("EIO", "restore", 1): "tests/training/run/test_unreadable.py::test_an_error_that_passes_is_not_noticed",
    ("404", "restore", 1): "tests/training/run/test_unreadable.py::"
    "test_damage_that_a_second_read_does_not_find_is_none",
    ("503", "prepare", 1): "tests/data/test_remote.py::"
    "test_a_copy_is_made_in_pieces_and_a_piece_that_fails_is_read_again",
    ("503", "restore", 1): "tests/training/run/test_unreadable.py::test_an_error_that_passes_is_not_noticed",
    ("503", "step", 1): "tests/training/run/test_writer.py::test_errors_are_one_warning_and_no_line_is_lost",
    ("slow", "step", 1): "tests/training/run/test_writer.py::"
    "test_a_store_that_hangs_delays_no_step_and_a_save_for_seconds_only",
    ("slow", "save", 1): "tests/training/run/test_writer.py::"
    "test_a_store_that_hangs_delays_no_step_and_a_save_for_seconds_only",
    ("torn write", "prepare", 1): "tests/data/preparation/test_restart.py::test_damaged_leftovers_are_discarded",
    ("torn write", "restore", 1): "tests/faults/test_damage.py::"
    "test_a_damaged_newest_checkpoint_is_reported_and_skipped",
    ("torn write", "step", 1): "tests/faults/test_phases.py::test_torn_lines_of_all_logs",
    ("torn write", "export", 1): "tests/faults/test_phases.py::test_an_export_that_is_half_written_or_altered",
    ("flipped bit", "restore", 1): "tests/faults/test_damage.py::"
    "test_a_damaged_newest_checkpoint_is_reported_and_skipped",
    ("flipped bit", "restore", 2): "tests/training/run/test_unreadable.py::"
    "test_all_processes_leave_a_checkpoint_that_one_finds_damaged",
    ("flipped bit", "export", 1): "tests/faults/test_phases.py::test_an_export_that_is_half_written_or_altered",
    ("lost lease", "start", 1): "tests/training/run/test_lease.py::"
    "test_of_processes_that_start_together_one_gets_the_lock",
    ("moved corpus", "start", 1): "tests/faults/test_moved_corpus.py::"
    "test_without_the_corpus_a_run_ends_with_equal_bits",
}
SURVIVED |= {("SIGTERM", phase, 1): "tests/faults/test_phases.py::test_sigterm" for phase in phases.STOPS}
SURVIVED |= {("kill -9", phase, 1): "tests/faults/test_phases.py::test_kill_9" for phase in phases.KILLS}
SURVIVED |= {
    ("clock jump", phase, 1): "tests/faults/test_phases.py::test_a_clock_that_jumps" for phase in phases.CLOCKS
}
SURVIVED |= {(fault, "save", 1): "tests/faults/test_phases.py::test_a_save_that_fails_once" for fault in phases.SAVES}
SURVIVED |= {
    (fault, phase, 1): "tests/faults/test_phases.py::test_a_file_that_cannot_be_written"
    for phase, fault in phases.WRITES
}
# They end in one line, and the exit code that the page of exit codes has for it.
REPORTED = {
    ("hang", "start", 1): "tests/training/run/test_watchdog.py::"
    "test_a_hang_in_any_state_ends_the_process_with_all_stacks",
    ("hang", "step", 1): "tests/faults/test_hangs.py::test_a_hang_ends_the_run_with_all_stacks",
    **{
        ("hang", phase, 1): "tests/faults/test_hangs.py::test_a_hang_in_any_other_state_does_so_too"
        for phase in ("restore", "evaluation", "save", "export")
    },
    ("403", "restore", 1): "tests/training/run/test_unreadable.py::test_other_errors_end_in_their_own_words",
    ("404", "prepare", 1): "tests/data/test_remote.py::test_a_store_that_does_not_exist",
    ("503", "restore", 2): "tests/training/run/test_unreadable.py::"
    "test_an_error_of_one_process_is_everyones_and_outweighs_damage",
    ("torn write", "start", 1): "tests/faults/test_damage.py::test_a_config_json_that_is_not_json_is_refused",
    ("flipped bit", "start", 1): "tests/data/test_store.py::test_a_damaged_file_is_refused",
    ("wrong replica", "save", 1): "tests/training/run/test_saving.py::"
    "test_the_device_with_the_wrong_copy_and_the_array_are_named",
    ("wrong replica", "restore", 2): "tests/training/run/test_unreadable.py::"
    "test_a_process_that_alone_reads_other_values_ends_the_run",
    ("lost lease", "step", 1): "tests/training/run/test_lease.py::"
    "test_a_holder_that_is_paused_loses_the_lock_and_leaves_that_of_the_next_alone",
    ("other versions", "start", 1): "tests/faults/test_damage.py::"
    "test_a_workdir_of_a_later_bertjax_is_refused_and_kept",
    ("other versions", "start", 2): "tests/faults/test_damage.py::test_hosts_with_other_versions_are_refused",
    ("other versions", "restore", 1): "tests/faults/test_damage.py::"
    "test_a_run_resumes_with_other_versions_only_if_it_is_told_to",
    ("moved corpus", "prepare", 1): "tests/faults/test_moved_corpus.py::test_without_the_store_the_corpus_is_compared",
}
KINDS = SURVIVED | REPORTED

# Tests of which each case is one bad input: {what is bad: tests}.
BAD_INPUTS = {
    "pretraining corpora": [
        "tests/test_bad_input.py::test_corpus",
        "tests/data/sources/test_bad_corpora.py::test_a_bad_file",
        "tests/data/sources/test_bad_corpora.py::test_a_bad_place",
        "tests/data/sources/test_lines.py::test_bad_json_line_is_named_or_left_out",
        "tests/data/sources/test_lines.py::test_a_damaged_archive_is_named_and_read_up_to_the_damage",
        "tests/data/sources/test_bad_corpora.py::test_a_bad_row_is_named_or_left_out",
    ],
    "labeled files": [
        "tests/data/labeled/test_bad_files.py::test_a_bad_file",
    ],
    "configurations": [
        "tests/config/test_bad_config.py::test_a_bad_setting",
        "tests/config/test_bad_config.py::test_a_bad_flag",
        "tests/config/test_bad_config.py::test_a_bad_file",
    ],
    "exports and weights": [
        "tests/interop/test_weights.py::test_a_damaged_pickle_is_one_line",
        "tests/interop/test_weights.py::test_a_pickle_that_runs_something_is_refused_and_runs_nothing",
        "tests/interop/test_weights.py::test_an_index_that_does_not_fit_is_refused",
        "tests/test_bad_models.py::test_export",
        "tests/test_bad_models.py::test_tokenizer",
        "tests/test_bad_models.py::test_model_of_a_tokenizer",
        "tests/test_bad_models.py::test_checkpoint_of_transformers",
        "tests/test_bad_models.py::test_run",
    ],
}


def cases(test: str) -> int:
    """Return the number of cases of a test function: the product of the lengths of its parameters."""
    path, name = test.split("::")
    function = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    return math.prod(len(mark.args[1]) for mark in marks)


def row(pattern: str) -> list[int]:
    """Return the numbers in the row of the page that matches a pattern."""
    [numbers] = re.findall(rf"^\| {pattern} \|$", PAGE.read_text(), re.MULTILINE)
    return [int(number) for number in ([numbers] if isinstance(numbers, str) else numbers)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
def test_a_test_injects_the_kind(kind):
    fault, phase, processes = kind
    assert fault in FAULTS and phase in PHASES and processes in (1, 2)
    path, name = KINDS[kind].split("::")
    functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name in functions, f"{path} has no {name}"


def test_the_page_has_the_number_of_kinds():
    assert {fault for fault, *_ in KINDS} == set(FAULTS) and {phase for _, phase, _ in KINDS} == set(PHASES)
    assert len(KINDS) == len(SURVIVED) + len(REPORTED) >= 60
    many = sum(processes == 2 for *_, processes in KINDS)
    assert row(r"kinds of faults; in two processes \| (\d+); (\d+)") == [len(KINDS), many]
    assert row(r"survived with equal bits; ended in one line \| (\d+); (\d+)") == [len(SURVIVED), len(REPORTED)]


def test_the_page_has_the_number_of_preemptions():
    assert row(r"preemptions that `tpu_pod.sh babysit` survives with equal bits \| (\d+)") == [len(EVENTS)]


def test_the_page_has_the_number_of_mutated_folders():
    assert row(r"mutated folders of models that load or end in one line \| (\d+)") == [foreign_files.ALL]


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_the_page_has_the_number_of_bad_inputs(what):
    assert row(rf"bad {what} that end in one line \| (\d+)") == [sum(map(cases, BAD_INPUTS[what]))]
