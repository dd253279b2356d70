"""The record of a divided labeled file in the workdir."""

from bertjax.config.config import from_dict
from bertjax.data.labeled.source import LabeledSource
from bertjax.training.run import splits
from bertjax.training.run.workdir import Workdir


def test_each_of_several_tasks_is_scored_on_its_own_recorded_split(tmp_path, store):
    (tmp_path / "all.csv").write_text("sentence,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40)))
    objective = {"kind": "classification", "classes": ["a", "b"]}
    examples = {"kind": "labeled_text", "train": str(tmp_path / "all.csv"), "heldout": 0.25}
    task = {"objective": objective, "examples": examples}
    config, files = from_dict({"tasks": {"first": task, "second": task}}), Workdir.at(tmp_path / "run")
    for name, each in config.tasks.items():
        splits.write(files, name, LabeledSource(each.examples, store.tokenizer, True, ("a", "b")))
    named = splits.named(files, config)
    heldout = [len(each.examples.read(each.examples.heldout)) for each in named.tasks.values()]
    assert heldout == [10, 10] and named.tasks["first"].examples.heldout != named.tasks["second"].examples.heldout
