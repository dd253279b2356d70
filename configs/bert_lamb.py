"""BERT-Large in 8,599 steps with LAMB: You et al. (2020), arXiv 1904.00962, mixed-batch training (section 4).

Run on every host of a TPU slice of 256 chips (the paper used a TPUv3 pod of 1,024 chips for 76 minutes):

    python -m bertjax.train --distributed --config=configs/bert_lamb.py --workdir=gs://BUCKET/bert_lamb \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/bert_lamb.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| model, data, dropout | those of BERT-Large | section 4 | `bert_large.py` |
| batch | 65,536 sequences of 128 tokens, then 32,768 of 512 | section 4 | the same, two stages |
| steps | 8,599 | table 1 | 7,037 and 1,562 |
| optimizer | LAMB, betas 0.9 and 0.999 | section 4 | the same |
| weight decay, epsilon | 0.01, 1e-6 | (*) | the same |
| learning rate | rises from 0 in both stages, falls linearly | section 4 | the same; 6e-3 and 4e-3, see below |

(*) From LAMB of TensorFlow Addons, to which the paper's abstract points, and from BERT's code.

The paper's text does not contain the split of the 8,599 steps or the learning rates of the mixed batch. 1,562 is the
paper's number for 32,768 rows of 512 tokens when the batch size is constant (15,625 steps, 14,063 of them at 128
tokens). Rates and warm-ups (6e-3 over 28.43% of the first stage, 4e-3 over 12.8% of the second) are those of NVIDIA's
published configuration for these batches (DeepLearningExamples, pretrain_config.sh), which decays in another way.

Deviations: biases and layer norms have no trust ratio and no decay; BERT's code does not decay them either. The norm of
the word table includes the rows that pad it to a multiple of 128. Otherwise the deviations are those of
`bert_large.py`.

`bert_lamb.py:smoke` trains a very small model in both stages on the embedded corpus in under a minute.
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
        raise ValueError(f"unknown variant {variant!r}; choose smoke")
    return config
