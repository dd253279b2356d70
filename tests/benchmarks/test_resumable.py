"""What benchmarks that resume share: the lines of finished cells, and cells that fail."""

import pytest

from benchmarks import resumable
from bertjax.runtime.errors import RunFailed


def test_a_line_that_was_cut_off_is_not_finished_and_the_next_one_replaces_it(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    assert resumable.finished(path) == []
    resumable.append(path, {"task": "MRPC"})
    with open(path, "a") as file:
        file.write('{"task": "ST')
    assert resumable.finished(path) == [{"task": "MRPC"}]
    resumable.append(path, {"task": "RTE"})
    assert resumable.finished(path) == [{"task": "MRPC"}, {"task": "RTE"}]


def test_a_cell_that_fails_does_not_stop_the_others_and_keeps_its_files(tmp_path, capsys):
    path, cleaned = tmp_path / "out.jsonl", []

    def measure(cell):
        if cell < 2:
            raise RunFailed("the loss is not finite")
        return {"cell": cell}

    def clean(cell):
        assert {"cell": cell} in resumable.finished(path)
        cleaned.append(cell)

    with pytest.raises(RunFailed, match="^2 cells failed: zero, one; run the same command again to continue$"):
        resumable.run({"zero": 0, "one": 1, "two": 2}, path, measure, clean)
    assert cleaned == [2]
    assert capsys.readouterr().err.splitlines() == [
        "cell 1 of 3: zero",
        "zero failed: the loss is not finite",
        "cell 2 of 3: one",
        "one failed: the loss is not finite",
        "cell 3 of 3: two",
    ]
