"""Continue pretraining an export on your own corpus: domain adaptation, as BioBERT was made from BERT.

    python -m bertjax.train --config=configs/adapt.py:models/bert --config.data.corpus=my/papers

The part after the colon is a pretrained model: an export (of a run, of `python -m bertjax convert` or of
`python -m bertjax extend`), RUN or RUN@STEP. Encoder, tokenizer, objective and examples are those of the model. The
optimizer and the stages are set below; adjust them to your corpus. See docs/guides/adaptation.md.
"""

import ml_collections

from bertjax.config.opening import SavedModel
from bertjax.data.labeled.base import LabeledFormat


def get_config(model: str = "") -> ml_collections.ConfigDict:
    if not model:
        raise ValueError("name the model to start from, such as configs/adapt.py:models/bert")
    source = SavedModel(model)
    if isinstance(source.config.task.examples, LabeledFormat):
        raise ValueError(f"{model} was fine-tuned on labeled files; name the model that was pretrained")
    config = ml_collections.ConfigDict()
    config.init_from = model
    config.model = {"preset": "init_from"}
    config.data = {"tokenizer": {"model": f"{source.folder}/tokenizer"}}
    config.tasks = source.settings["tasks"]
    # A lower peak than from random weights, after a short warm-up, so that the model keeps what it has learned.
    config.optimizer = {"learning_rate": 5e-5, "warmup_steps": 500}
    config.stages = [{"steps": 10_000, "seq_len": min(128, source.config.model.max_positions), "batch": 64}]
    config.runtime = {"keep_at": [0]}  # RUN@0 is the model as it came: its held-out loss is the one to compare with
    return config
