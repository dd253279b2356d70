"""Distillation and fine-tuning in a bucket, down to the exit code and the last line that is printed.

The recipes that pretrain are in tests/test_recipes.py, in a bucket too.
"""

import pytest

from tests import labeled_files, runs
from tests.object_store import ObjectStore

pytestmark = pytest.mark.slow

CONFIGS = runs.CONFIG.parents[1] / "configs"


@pytest.fixture(scope="module")
def store():
    with ObjectStore().running() as store:
        yield store


@pytest.mark.parametrize("variant", ["smoke", "cls"])
def test_fine_tuning_which_ends_as_well_the_second_time(store, undisturbed, tmp_path, variant):
    """The mean of the hidden states, of which transformers has no class, and [CLS], of which it has one."""
    labeled, dev = labeled_files.write(tmp_path, train=32, heldout=8)
    own = [f"--config={CONFIGS / 'finetune' / 'classify.py'}:{variant}", f"--config.init_from={undisturbed / 'export'}"]
    values = {"train": labeled, "heldout": dev, "text": "sentence", "label": "label"}
    own += [f"--config.tasks.classify.examples.{key}={value}" for key, value in values.items()]
    own += ["--config.stages.0.min_steps=0", "--config.stages.0.seq_len=32", "--config.stages.0.epochs=1"]
    for _ in range(2):
        output = runs.train_here_in_bucket(store, f"classify-{variant}", *own)
        assert "bertjax convert --from=" in output.splitlines()[-1]
