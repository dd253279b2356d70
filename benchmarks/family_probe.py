"""A linear probe of a frozen encoder: one layer on its features predicts the named entities of CoNLL-2003.

    python -m bertjax.train --config=benchmarks/family_probe.py:EXPORT,FOLDER --workdir=runs/probe

EXPORT is a model of `benchmarks/family_config.py`. FOLDER has train.txt.gz and valid.txt.gz.
"""

import ml_collections

from benchmarks.family_config import SEQ_LEN


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    export, _, folder = variant.partition(",")
    if not folder:
        raise ValueError("name an export and the folder of CoNLL-2003, as in family_probe.py:runs/mlm/export,conll2003")
    files = {"train": f"{folder}/train.txt.gz", "heldout": f"{folder}/valid.txt.gz"}
    config = ml_collections.ConfigDict()
    config.init_from = export
    config.model = {"preset": "init_from"}
    config.tasks = {
        "probe": {
            "objective": {"kind": "tagging"},
            "examples": {"kind": "tagged", "tag": 1, "stride": SEQ_LEN // 2, **files},
        }
    }
    config.optimizer = {"learning_rate": 1e-2, "warmup_share": 0.1, "frozen": ["encoder/"], "weight_decay": 0.0}
    config.stages = [{"epochs": 3.0, "seq_len": SEQ_LEN, "examples": 64}]
    config.eval = {"every": 0, "samples": 0}
    config.runtime = {"save_every": 10**6, "log_every": 50}
    return config
