"""BERT-Large in 8,599 steps with LAMB: You et al. (2020), arXiv 1904.00962, mixed-batch training (section 4).

On every host of a TPU slice of 256 chips (the paper had a TPUv3 pod of 1,024, for 76 minutes):

    python -m bertjax.train --distributed --config=configs/bert_lamb.py --workdir=gs://BUCKET/bert_lamb \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

Does it fit, and what does it cost? Compiled for the slice without having one:

    python -m bertjax.compile --config=configs/bert_lamb.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| model, data, dropout | those of BERT-Large | section 4 | `bert_large.py` |
| batch | 65,536 sequences of 128 tokens, then 32,768 of 512 | section 4 | the same, two stages |
| steps | 8,599 | table 1 | 7,037 and 1,562 |
| optimizer | LAMB, betas 0.9 and 0.999 | section 4 | the same |
| weight decay, epsilon | 0.01, 1e-6 | (*) | the same |
| learning rate | rises from 0 in both stages, falls linearly | section 4 | the same; 6e-3 and 4e-3, see below |

(*) LAMB of TensorFlow Addons, to which the paper's abstract points, and BERT's code.

How the 8,599 steps are shared out, and the rates of the mixed batch, are not in the paper's text. 1,562 is what it
gives for 32,768 rows of 512 tokens with one batch size throughout (15,625 steps, 14,063 of them at 128). Rates and
warm-ups (6e-3 over 28.43% of the first stage, 4e-3 over 12.8% of the second) are those of NVIDIA's published
configuration for these batches (DeepLearningExamples, pretrain_config.sh), whose decay is another one.

Deviations: biases and layer norms have no trust ratio and no decay, as in BERT's code for decay; otherwise those of
`bert_large.py`.

`bert_lamb.py:smoke` goes through both stages with a very small model on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "large", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "wordpiece", "vocab_size": 30_000, "lowercase": True},
    }
    config.tasks = {
        "bert": {
            "objective": {"kind": "bert", "masking": {"kind": "tokens"}},
            "examples": {"kind": "segment_pairs"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"kind": "lamb", "learning_rate": 6e-3, "warmup_steps": 2001}
    config.stages = [
        {"steps": 7037, "seq_len": 128, "batch": 65_536},
        {"steps": 1562, "seq_len": 512, "batch": 32_768, "learning_rate": 4e-3, "warmup_steps": 200},
    ]
    config.eval = {"every": 500}
    config.runtime = {"micro_tokens": 2048, "save_every": 200}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {
            "corpus": "embedded:en",
            "tokenizer": {"kind": "wordpiece", "vocab_size": 2000, "lowercase": True},
        }
        config.optimizer.update({"learning_rate": 1e-2, "warmup_steps": 10})
        config.stages = [
            {"steps": 35, "seq_len": 32, "batch": 64},
            {"steps": 15, "seq_len": 64, "batch": 32, "learning_rate": 5e-3, "warmup_steps": 3},
        ]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"no variant {variant!r}; there is smoke")
    return config
