"""ERNIE 2.0's continual multi-task pretraining: Sun et al. (2020), arXiv 1907.12412.

Run on every host of a TPU slice of 16 chips:

    python -m bertjax.train --distributed --config=configs/ernie2.py --workdir=gs://BUCKET/ernie2 \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/ernie2.py --topology=v5e:4x4

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 12, 768, 12 | "Pre-training Settings" | the same |
| tasks enter one after another, the earlier ones continue | yes | "Continual Multi-task Learning" | a stage each |
| task embedding | one for each task | "Model Structure" | the same |
| phrases and entities are masked | as wholes | "Word-aware Pre-training Tasks" | phrases mined in the corpus |
| capitalization, token-document relation | yes | the same | the same |
| sentence reordering, sentence distance | yes | "Structure-aware Pre-training Tasks" | at most three segments |
| discourse relation, IR relevance | yes | "Semantic-aware Pre-training Tasks" | no: they need labels and search logs |

| batch | 393,216 tokens | "Pre-training Settings" | 768 rows of 512 |
| optimizer | Adam, 5e-5 (English), betas 0.9, 0.98 | the same | the same; epsilon, decay, clipping as in BERT |
| learning rate | "noam", 4,000 steps of warm-up for every task | the same | the same, in each stage |

Every task also masks tokens, because the paper combines sentence tasks and token tasks. Fine-tuning adds the task
embedding of `knowledge`; according to the paper any of them works. `knowledge` is the first task: its masked-LM loss
chooses the best checkpoint.

Deviations:
- The paper trains until the metrics of the tasks converge. Here each stage has 200,000 steps, and its tasks take turns.
- The paper's English model reads lower case, and `capitals` gives back what is lost. Here the tokenizer keeps capitals,
  because one tokenizer serves all tasks, and only `capitals` reads and predicts lower case. So the shared head predicts
  lower-case pieces in this task alone, the task sees a text that no other task and no fine-tuning sees, and it does not
  label words that have no lower-case piece.
- Capitals of masked tokens are also predicted.

`ernie2.py:smoke` trains a very small model in the same way on the embedded corpus in two minutes.
"""

import ml_collections

# In the order in which they enter the mixture.
TASKS = {
    "knowledge": ("mlm", "doc_sentences"),
    "capitals": ("capitals", "doc_sentences"),
    "document": ("token_document", "token_document"),
    "reordering": ("sentence_reordering", "sentence_reordering"),
    "distance": ("sentence_distance", "sentence_distance"),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {
        "preset": "base",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "embeddings": {"task_types": len(TASKS)},
    }
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000},
    }
    config.tasks = {
        name: {
            "objective": {"kind": objective, "masking": {"kind": "phrases"}},
            "examples": {"kind": examples},
            "row_examples": 1,
            "task_type": number,
        }
        for number, (name, (objective, examples)) in enumerate(TASKS.items())
    }
    rate = {"learning_rate": 5e-5, "warmup_steps": 4000}
    config.optimizer = rate | {"b2": 0.98, "schedule": {"kind": "inverse_sqrt"}}
    entered = [list(TASKS)[: count + 1] for count in range(len(TASKS))]
    config.stages = [{"steps": 200_000, "seq_len": 512, "batch": 768, "tasks": tasks} for tasks in entered]
    config.eval = {"every": 10_000}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "wordpiece", "vocab_size": 2000}}
        rate = {"learning_rate": 1e-3, "warmup_steps": 5}
        config.optimizer.update(rate)
        config.stages = [{"steps": 20, "seq_len": 64, "batch": 32, "tasks": tasks} for tasks in entered]
        config.eval = {"every": 100, "rows": 64}
        config.runtime = {"save_every": 50}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    for stage in config.stages[1:]:
        stage.update(rate)
    return config
