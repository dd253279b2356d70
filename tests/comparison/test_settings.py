"""In what configurations differ: nested settings, kinds, lists, seeds, and what was read."""

from bertjax.comparison.runs import open_entries
from bertjax.comparison.settings import differences_of, leaves, shorten, text_of
from tests.comparison.workdirs import record, write


def compared(*roots):
    return differences_of(open_entries([str(root) for root in roots]))


def test_leaves_are_named_as_they_are_overridden():
    nested = {"a": {"b": 1, "none": {}}, "stages": [{"steps": 3}, {"steps": 4}], "names": ["x", "y"], "empty": []}
    assert leaves(nested) == {"a.b": 1, "stages.0.steps": 3, "stages.1.steps": 4, "names": ["x", "y"]}


def test_only_differing_settings_are_listed_each_in_its_half(tmp_path):
    changed = {
        "optimizer": {"warmup_steps": 2, "schedule": {"kind": "cosine"}},
        "runtime": {"workers": 2},
        "eval": {"rows": 64},
        "data": {"corpus": "my/texts"},
    }
    first = write(tmp_path / "a", [record(1)])
    second = write(tmp_path / "b", [record(1)], changed, store="b" * 64)
    differences = compared(first, second)
    assert differences.identity["optimizer.schedule.kind"] == [("linear",), ("cosine",)]
    assert all(name.startswith("optimizer.schedule.") for name in differences.identity)
    assert differences.execution == {
        "data.corpus": [("embedded:en",), ("my/texts",)],
        "eval.rows": [(4096,), (64,)],
        "runtime.workers": [(0,), (2,)],
    }
    assert differences.content == {"data.store_fingerprint": [("a" * 64,), ("b" * 64,)]}, "and no plan"


def test_equal_runs_have_no_differences(tmp_path):
    differences = compared(write(tmp_path / "a", [record(1)]), write(tmp_path / "b", [record(1)]))
    assert differences.identity == differences.execution == differences.content == {}


def test_a_setting_that_an_older_run_lacks_has_its_default(tmp_path):
    first, second = write(tmp_path / "a", [record(1)]), write(tmp_path / "b", [record(1)])
    path = second / "config.json"
    path.write_text(path.read_text().replace('"overfit": 0, ', "").replace('"keep_best": 0, ', ""))
    assert path.read_text() != (first / "config.json").read_text()
    assert compared(first, second).identity == {}


def test_an_additional_stage_and_another_kind_of_task(tmp_path):
    stage = {"steps": 20, "seq_len": 32, "batch": 8}
    changed = {"stages": [stage, stage | {"steps": 5}], "tasks": {"bert": {"objective": {"kind": "mlm"}}}}
    differences = compared(write(tmp_path / "a", [record(1)]), write(tmp_path / "b", [record(1)], changed)).identity
    assert differences["stages.1.steps"] == [(None,), (5,)] and "stages.0.steps" not in differences
    assert differences["tasks.bert.objective.kind"] == [("bert",), ("mlm",)]


def test_seeds_are_one_column(tmp_path):
    for seed in (0, 1):
        write(tmp_path / "many" / f"seed={seed}", [record(1)], {"seed": seed})
        write(tmp_path / "others" / f"seed={seed}", [record(1)], {"seed": seed})
    alone = write(tmp_path / "alone", [record(1)], {"seed": 1})
    assert compared(tmp_path / "many", tmp_path / "others").identity == {}, "they have the same seeds"
    assert compared(tmp_path / "many", alone).identity == {"seed": [(0, 1), (1,)]}


def test_values_as_text():
    assert text_of((None,)) == "-" and text_of(("",)) == '""' and text_of((True,)) == "true"
    assert text_of((["a", "b"],)) == '["a", "b"]' and text_of((0, 1)) == "0, 1"


def test_long_values_are_cut_around_the_first_difference():
    texts = ["x" * 30 + "first" + "y" * 30, "x" * 30 + "second" + "y" * 30, "-"]
    assert shorten(texts, width=16) == ["…xxxxxxxxfirstyyy…", "…xxxxxxxxsecondyy…", "-"]
    assert shorten(["a" * 9 + "b" * 40, "-"], width=8) == ["…bbbbbbbb", "-"]
    others = ["p" + "x" * 30 + "1" + "y" * 9, "p" + "x" * 30 + "2" + "y" * 9, "q" * 40]
    assert shorten(others, width=16) == others, "cut where the third differs, the first two would look the same"
