"""Goes on pretraining from an export on your own corpus: domain adaptation, as BioBERT did it from BERT.

    python -m bertjax.train --config=configs/adapt.py:models/bert --config.data.corpus=my/papers

What follows the colon is an export folder: of a run of bertjax, of `python -m bertjax.convert` or of
`python -m bertjax.extend`. Encoder, tokenizer, objective and examples are the export's; optimizer and stages are below,
to be set for your corpus. See docs/adaptation.md.
"""

import ml_collections

from bertjax import config as configuration
from bertjax import export


def get_config(folder: str = "") -> ml_collections.ConfigDict:
    if not folder:
        raise ValueError("name the export to begin with: configs/adapt.py:models/bert")
    source = configuration.to_dict(export.read_config(folder))
    config = ml_collections.ConfigDict()
    config.init_from = folder
    config.model = source["model"] | {"vocab_size": 0}
    config.data = {"tokenizer": {"model": f"{folder}/{export.TOKENIZER}"}}
    config.tasks = source["tasks"]
    # What is known is to stay known: a lower peak than from chance, and a short rise to it.
    config.optimizer = {"learning_rate": 5e-5, "warmup_steps": 500}
    config.stages = [{"steps": 10_000, "seq_len": min(128, source["model"]["max_positions"]), "batch": 64}]
    return config
