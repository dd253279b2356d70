"""ERNIE's knowledge masking in three stages: Sun et al. (2019), arXiv 1904.09223, section 3.2.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/ernie.py --workdir=gs://BUCKET/ernie \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/ernie.py --topology=v5e:4x4

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | 3.1 | the same |
| first stage | 15% of the basic units, single tokens | 3.2.1 | the same |
| second stage | phrases as wholes | 3.2.2 | phrases mined in the corpus |
| third stage | named entities as wholes | 3.2.3 | the entities of your list, see below |

Batch, steps and learning rate are BERT's, because the paper does not give them. Each stage has a third of the steps.
The dialogue task of section 4.2 is not implemented. The three tasks share the encoder and the head.

The paper finds entities with a tagger. Write your entities into a file, one per line, and name the file:

    python -m bertjax.train --config=configs/ernie.py --config.tasks.entities.objective.masking.lexicon=my/entities.txt

Without a list, the third stage uses only the 10,000 strongest phrases, most of which are names.

Deviations:
- GELU is computed by erf, as in the first release of BERT's code. Since February 2019 that code has the approximation
  by tanh, `--config.model.activation=gelu_tanh`.

`ernie.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections

MASKINGS = {
    "tokens": {"kind": "tokens"},
    "phrases": {"kind": "phrases"},
    "entities": {"kind": "phrases", "lexicon_size": 10_000},
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {
        name: {
            "objective": {"kind": "bert", "masking": masking},
            "examples": {"kind": "segment_pairs"},
            "row_examples": 1,
        }
        for name, masking in MASKINGS.items()
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 333_333, "seq_len": 512, "batch": 256, "tasks": [name]} for name in MASKINGS]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 20, "seq_len": 32, "batch": 32, "tasks": [name]} for name in MASKINGS]
        config.eval = {"every": 60, "rows": 64}
        config.runtime = {"save_every": 30}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
