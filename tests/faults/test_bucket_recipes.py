"""A recipe of each family with its workdir in a bucket, down to the exit code and the last line that is printed."""

import json

import pytest

from bertjax.config_file import load
from tests import labeled_files, runs
from tests.object_store import ObjectStore

pytestmark = pytest.mark.slow

CONFIGS = runs.CONFIG.parents[1] / "configs"
# BERT itself is in test_object_store.py.
PRETRAINING = ("roberta_base", "albert_base", "electra_small", "causal", "xlnet", "modern", "spanbert", "stacking")


@pytest.fixture(scope="module")
def store():
    with ObjectStore().running() as store:
        yield store


@pytest.fixture(scope="module")
def token_stores(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


def train(store: ObjectStore, name: str, *flags: str) -> str:
    """Train in gs://bucket/NAME, and return what the command printed."""
    done = runs.finish(runs.start(*flags, f"--workdir=gs://bucket/{name}", **store.environment))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "could not be printed" not in done.stderr, done.stderr
    heartbeat = json.loads(store.content(f"{name}/heartbeat.json"))
    assert (heartbeat["state"], heartbeat["exit_code"]) == ("finished", 0)
    assert json.loads(store.content(f"{name}/summary.json"))["finished"]
    assert {f"{name}/export/model.safetensors", f"{name}/curves.png"} <= set(store.names(name))
    # The commands after it read disks.
    assert f"next      mkdir -p {name} && gcloud storage cp --recursive gs://bucket/{name}/export {name}" in done.stdout
    assert f"{name}/export" in done.stdout.splitlines()[-1]
    return done.stdout


@pytest.mark.parametrize("name", PRETRAINING)
def test_a_pretraining_recipe(store, token_stores, name):
    stages = range(len(load(f"{CONFIGS / name}.py:smoke").stages))
    short = [f"--config.stages.{index}.steps=12" for index in stages]  # their warm-up takes ten
    train(store, name, f"--config={CONFIGS / name}.py:smoke", f"--config.data.store={token_stores}", *short)


def test_distillation(store, flags, undisturbed):
    own = [f"--config={CONFIGS / 'distilbert.py'}:{undisturbed / 'export'}", *flags[1:]]
    short = ["--config.stages.0.epochs=0", "--config.stages.0.steps=2", "--config.stages.0.batch=8"]
    train(store, "distilbert", *own, *short)


@pytest.mark.parametrize("variant", ["smoke", "cls"])
def test_fine_tuning_which_ends_as_well_the_second_time(store, undisturbed, tmp_path, variant):
    """The mean of the hidden states, of which transformers has no class, and [CLS], of which it has one."""
    labeled, dev = labeled_files.write(tmp_path, train=32, heldout=8)
    own = [f"--config={CONFIGS / 'finetune' / 'classify.py'}:{variant}", f"--config.init_from={undisturbed / 'export'}"]
    values = {"train": labeled, "heldout": dev, "text": "sentence", "label": "label"}
    own += [f"--config.tasks.classify.examples.{key}={value}" for key, value in values.items()]
    own += ["--config.stages.0.min_steps=0", "--config.stages.0.seq_len=32", "--config.stages.0.epochs=1"]
    for _ in range(2):
        output = train(store, f"classify-{variant}", *own)
        assert "bertjax.convert --from=" in output.splitlines()[-1]
