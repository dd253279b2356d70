"""NeoBERT, deep and narrow, in two phases: Le Breton et al. (2025), arXiv 2502.19587.

Run on every host of a TPU slice of 64 chips:

    python -m bertjax.train --distributed --config=configs/neobert.py --workdir=gs://BUCKET/neobert \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/neobert.py --topology=v5e:8x8

| setting | paper | where | here |
|---|---|---|---|
| layers, width, heads | 28, 768, 12 | 3.1 | the same |
| positions | rotary; base 10,000 (*) | 3.1 | the same |
| norms | RMS norms before each part, epsilon 1e-5 (*) | 3.1 | the same |
| feed-forward | SwiGLU, 2,048: two thirds of 3,072 (*) | 3.1 | the same |
| initialization | uniform, from -0.02 to 0.02 (*) | | a cut normal of the same deviation, 0.0115 |
| objective | masked tokens, 20%, all of them [MASK] | 3.3 and table 2 | the same |
| sequence length | 1,024 for 1,000,000 steps, then 4,096 for 50,000 | 3.2 | the same, two stages |
| batch | 2 million tokens: 2,048 rows, then 512 (*) | 3.3 | the same |
| optimizer | AdamW, betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1, clip norm 1 | 3.3 | the same |
| learning rate | 6e-4, warm-up over 2,000 steps | 3.3 | the same |
| decay | cosine to 10% until step 900,000, constant from then on | 3.3 | the same |
| dropout | 0 (*) | | the same |
| vocabulary | 30,522, the tokenizer of BERT, lower case | (*) | WordPiece of this size, trained on your corpus |
| corpus | RefinedWeb, 600 billion tokens | 3.2 | `data.corpus`; default: Wikipedia only |

(*) From the authors' published code, chandar-lab/NeoBERT: conf, jobs and src/neobert/model/model.py.

Deviations:
- The rates and the weight decay are the paper's. conf/optimizer/adamw.yaml has a peak of 1e-4 and a weight decay of
  0.01, and jobs/neobert.sh leaves them so.
- Their rows have one document each, cut at the length and filled up with padding. Here rows have several documents,
  kept separate, and no padding.
- In the second phase four of five of their batches are documents of more than 1,024 or 2,048 tokens. Here both phases
  draw from all documents.

`neobert.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The cut at two deviations leaves 0.88 of it: 0.02 / sqrt(3), the deviation of a uniform distribution.
    config.model = {"preset": "neobert", "init_stddev": 0.01313}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_522, "lowercase": True},
    }
    masking = {"kind": "tokens", "rate": 0.2, "mask": 1.0, "random": 0.0}
    config.tasks = {"mlm": {"objective": {"kind": "mlm", "masking": masking}, "examples": {"kind": "doc_sentences"}}}
    config.optimizer = {
        "learning_rate": 6e-4,
        "warmup_steps": 2000,
        "schedule": {"kind": "cosine", "floor": 0.1, "end_step": 900_000},
        "b2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }
    config.stages = [
        {"steps": 1_000_000, "seq_len": 1024, "batch": 2048},
        {"steps": 50_000, "seq_len": 4096, "batch": 512},
    ]
    config.eval = {"every": 10_000}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "smoke":
        config.model.update({"layers": 4, "width": 128, "heads": 2, "feedforward": 344})
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.optimizer.schedule.end_step = 45
        config.stages = [{"steps": 40, "seq_len": 64, "batch": 32}, {"steps": 10, "seq_len": 128, "batch": 16}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
