"""Sentence embeddings as in Sentence-BERT (Reimers & Gurevych, 2019, arXiv 1908.10084) and supervised SimCSE.

    python -m bertjax.train --config=configs/finetune/embeddings.py:NLI --config.init_from=EXPORT --workdir=runs/nli
    python -m bertjax.train --config=configs/finetune/embeddings.py:STS-B --config.init_from=runs/nli --workdir=runs/sts

These two train on natural language inference first and on graded similarity second, the best order in the paper's
table 2. The second command also works alone, from any EXPORT: an export of a run (`runs/tiny/export`) or of a converted
model (docs/guides/huggingface.md).

    python -m bertjax.train --config=configs/finetune/embeddings.py:pairs --config.init_from=EXPORT --workdir=runs/pairs

This one needs only pairs of texts that belong together. It learns to find the second text of a pair among all second
texts of the batch, as supervised SimCSE does (Gao et al., 2021, arXiv 2104.08821), without hard negatives.

    python -m bertjax.train --config=configs/finetune/embeddings.py:simcse --config.init_from=EXPORT \
        --workdir=runs/simcse

This one needs only texts, one on each line. Each text is its own pair, and dropout makes the two views of it differ:
unsupervised SimCSE (Gao et al., 2021, section 3). The best checkpoint is the one with the highest Spearman correlation
on the development set of STS-B.

Files, relative to the current folder (`--config.tasks.embeddings.examples.train=` and `...heldout=` name others):
- nli/train.tsv and nli/dev.tsv with columns sentence1, sentence2, label: SNLI and MultiNLI one after the other, without
  the pairs that have no gold label
- glue/STS-B/train.tsv and dev.tsv
- pairs/train.tsv and dev.tsv with columns sentence1, sentence2
- texts/train.txt with a text on each line, and glue/STS-B/dev.tsv, for simcse

`bertjax predict --do=embed` computes the vectors of new sentences.

| setting | paper | where | here |
|---|---|---|---|
| pooling | mean over the tokens, [CLS] and [SEP] included | SBERT, section 3 | the same |
| NLI: loss | softmax over (u, v, abs(u - v)), no bias | SBERT, section 3 | the same, with a bias |
| NLI: batch, epochs | 16 pairs, 1 | SBERT, section 3.1 | the same, 16 on average: short texts share rows |
| NLI: learning rate, warm-up | 2e-5, a tenth of the training data | SBERT, section 3.1 | the same, linear decay |
| STS-B: loss | squared error of the cosine; score / 5 | SBERT, section 3; training_stsbenchmark.py | the same |
| STS-B: batch, epochs | not given; 16 pairs, 4 | training_stsbenchmark.py | the same, 16 on average |
| STS-B: learning rate, warm-up | not given; a tenth | training_stsbenchmark.py | 2e-5, a tenth of the steps |
| optimizer | Adam | SBERT, section 3.1 | Adam, weight decay 0.01 |
| longest text | not given | | 128 tokens, half a row |
| pairs: temperature | 0.05 | SimCSE, section 3 | the same |
| pairs: batch, epochs, learning rate | 512 pairs, 3, 5e-5 | SimCSE, run_sup_example.sh | the same, 512 on average |
| pairs: longest text | 32 tokens | SimCSE, run_sup_example.sh | the same, half a row |
| pairs: pooling | [CLS] with a dense layer and tanh | SimCSE, run_sup_example.sh | the mean, without the layer |
| pairs: warm-up | none | SimCSE, run_sup_example.sh | the same |
| simcse: temperature | 0.05 | SimCSE, section 3; run_unsup_example.sh | the same |
| simcse: epochs, longest text | 1, 32 tokens | SimCSE, run_unsup_example.sh | the same |
| simcse: batch, learning rate | 64 texts, 3e-5 (BERT-base) | SimCSE, README.md | the same, 64 on average |
| simcse: evaluation | STS-B's dev set, every 125 steps | SimCSE, run_unsup_example.sh | the same |
| simcse: pooling | [CLS], with an MLP in training | SimCSE, README.md | the mean |
| simcse: texts | a million sentences of Wikipedia | SimCSE, README.md | yours |

training_stsbenchmark.py, run_sup_example.sh and run_unsup_example.sh are the scripts that the authors published with
their code. README.md of SimCSE has other rates for other models: 512 texts and 1e-5 for RoBERTa-base, for example.

`embeddings.py:NLI-smoke`, `:STS-B-smoke`, `:pairs-smoke` and `:simcse-smoke` are the same with short rows and a high
learning rate, for a very small model and a few pairs.
"""

import ml_collections

VARIANTS = ("NLI", "STS-B", "pairs", "simcse")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    variant, smoke = variant.removesuffix("-smoke"), variant.endswith("-smoke")
    if variant not in VARIANTS:
        raise ValueError(f"name a variant: {', '.join(VARIANTS)}")
    objective, folder, label = {
        "NLI": ({"kind": "embedding_classification"}, "nli", "label"),
        "STS-B": ({"kind": "embedding_regression", "full_score": 5.0}, "glue/STS-B", "score"),
        "pairs": ({"kind": "embedding_contrastive", "temperature": 0.05}, "pairs", ""),
        "simcse": ({"kind": "embedding_simcse", "temperature": 0.05}, "glue/STS-B", "score"),
    }[variant]
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        "embeddings": {
            "objective": objective,
            "examples": {
                "kind": "siamese_pairs",
                "train": f"{folder}/train.tsv",
                "heldout": f"{folder}/dev.tsv",
                "text": "sentence1",
                "pair": "sentence2",
                "label": label,
            },
        }
    }
    config.optimizer = {"learning_rate": 2e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 4.0 if variant == "STS-B" else 1.0, "seq_len": 256, "examples": 2 * 16}]
    if variant == "pairs":
        config.tasks["embeddings"]["examples"].update({"text": "auto", "pair": "auto"})
        config.optimizer = {"learning_rate": 5e-5, "warmup_steps": 0}
        config.stages = [{"epochs": 3.0, "seq_len": 64, "examples": 2 * 512}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    config.runtime = {"keep_best": 1}
    if variant == "simcse":
        config.tasks["embeddings"]["examples"].update({"kind": "repeated_text", "train": "texts/train.txt"})
        config.optimizer = {"learning_rate": 3e-5, "warmup_steps": 0}
        config.stages = [{"epochs": 1.0, "seq_len": 64, "examples": 2 * 64}]
        config.eval["every"] = 125
    if smoke:
        config.optimizer["learning_rate"] = 3e-3
        config.stages[0].update({"seq_len": 32, "examples": 2 * 16})
        config.eval["every"] = 0
    return config
