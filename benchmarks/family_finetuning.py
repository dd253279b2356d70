"""A small fine-tuning for the family benchmark: the sentiment of the first 8,000 sentences of SST-2, in two epochs.

    python -m bertjax.train --config=benchmarks/family_finetuning.py:EXPORT,DATA --workdir=runs/sst2

EXPORT is a model of `benchmarks/family_config.py`; DATA has glue/SST-2/train.tsv.gz and dev.tsv.gz. Rows of 32
tokens cut 1,390 of the 8,000 sentences and 516 of the 872 that are held out, for all models alike.
"""

import ml_collections

from benchmarks.family_config import SEQ_LEN


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    export, comma, folder = variant.partition(",")
    if not comma:
        raise ValueError("name an export and a folder of data, as in family_finetuning.py:runs/mlm/export,data")
    config = ml_collections.ConfigDict()
    config.init_from = export
    config.model = {"preset": "init_from"}
    config.tasks = {
        "sst2": {
            "objective": {"kind": "classification"},
            "examples": {
                "kind": "labeled_text",
                "train": f"{folder}/glue/SST-2/train.tsv.gz",
                "heldout": f"{folder}/glue/SST-2/dev.tsv.gz",
                "text": "sentence",
                "label": "label",
                "limit": 8000,
            },
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 5e-4, "warmup_share": 0.1}
    config.stages = [{"epochs": 2.0, "seq_len": SEQ_LEN, "batch": 32}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"unroll": True, "log_every": 50, "save_every": 10**6}
    return config
