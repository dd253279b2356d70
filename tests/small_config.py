"""The smallest BERT that shows everything a run does, on a corpus that the tests write."""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {
        "layers": 2,
        "width": 32,
        "heads": 2,
        "feedforward": 64,
        "max_positions": 32,
        "attention_dropout": 0.0,
    }
    config.data = {"tokenizer": {"vocab_size": 400}, "heldout_share": 0.2}
    config.optimizer = {"learning_rate": 2e-3, "warmup_steps": 5}
    config.stages = [{"steps": 100, "seq_len": 32, "batch": 8}]
    config.eval = {"every": 50, "rows": 16, "samples": 1}
    config.runtime = {"log_every": 1, "save_every": 10, "keep_every": 40}
    return config
