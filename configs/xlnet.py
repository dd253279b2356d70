"""XLNet as published: Yang et al. (2019), arXiv 1906.08237, section 3.1 and the appendix on hyperparameters.

Run on every host of a TPU slice of 256 chips (the paper used 512 TPU v3 chips for five and a half days):

    python -m bertjax.train --distributed --config=configs/xlnet.py --workdir=gs://BUCKET/xlnet \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/xlnet.py --topology=v5e:16x16

| setting | paper | where | here |
|---|---|---|---|
| model | 24 layers, 1024 wide, 16 heads, 4096 feed-forward | appendix | the same |
| positions | relative, relative segments | 2.4, 2.5 | the same |
| predicted | 1/6 of the tokens, the last of a random order | 2.3, appendix | the same |
| units of prediction | spans of 1 to 5 tokens, p(n) as 1/n (*) | 3.1 | 1 to 5 whole words |
| directions | half of each batch is reversed | 3.1 | without a memory this changes no state |
| sequences | 512 tokens | appendix | full sentences, 512 tokens |
| batch | 8,192 | appendix | the same |
| steps | 500,000 | appendix | the same |
| learning rate | 4e-4, warm-up over 40,000 steps, linear decay | appendix | the same |
| optimizer | Adam, epsilon 1e-6, weight decay 0.01 | appendix | the same, clip norm 1 |
| dropout | 0.1, 0.1 on attention | appendix | the same |
| tokenizer | SentencePiece, 32,000, cased | (*) | the same, trained on your corpus |

(*) From the authors' published code, zihangdai/xlnet.

Deviations:
- The published training packs two segments for half of the examples.
- It remembers the previous segment across steps (section 2.4). Here, `--config.tasks.xlnet.objective.memory=True` makes
  the first half of a row the memory of the second.
- It reverses half of each batch, tokens and distances, so that the memory of these rows is the text after them. Here,
  `--config.tasks.xlnet.objective.both_directions=True` does so with the memory above.
- [CLS] comes first, not last, and has the segment of the text; that code gives it a segment of its own.
- That code permutes blocks of 256 tokens. In a row of 512 the first block is text of the batch before: it is predicted
  again, and the second block sees all of it. Here the order is over the whole row, and with `memory` nothing in the
  first half is predicted.
- Its runs have n tokens, counted from the start of a word.
- There is no dropout on the output of the last layer, on the sinusoids of distances, or within the feed-forward layer.
  That code has 0.1 in all three places.
- That code draws initial weights from a normal distribution with a standard deviation of 0.02. Here it is truncated at
  two standard deviations, as in BERT's code, which leaves a deviation of 0.0176.
- The learning rate of that code falls to 0.001 of its peak (`min_lr_ratio`), here to 0.
- Adam of that code has no bias correction. `--config.optimizer.bias_correction=False` turns it off here.

`xlnet.py:base` is the size of BERT-Base that the paper compares. `xlnet.py:smoke` trains a very small model in the same
way on the embedded corpus in under a minute.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "xlnet_large", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "unigram", "vocab_size": 32_000},
    }
    config.tasks = {
        "xlnet": {
            "objective": {
                "kind": "permutation",
                "masking": {"kind": "ngrams", "longest": 5, "rate": 1 / 6, "mask": 0.0, "random": 0.0},
            },
            "examples": {"kind": "full_sentences"},
            "row_examples": 1,
        }
    }
    config.optimizer = {"learning_rate": 4e-4, "warmup_steps": 40_000}
    config.stages = [{"steps": 500_000, "seq_len": 512, "batch": 8192}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "base":
        config.model["preset"] = "xlnet_base"
    elif variant == "smoke":
        config.model.update({"preset": "xlnet_base", "layers": 2, "width": 128, "heads": 2, "feedforward": 512})
        config.data = {"corpus": "embedded:en", "tokenizer": {"vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 10})
        config.stages = [{"steps": 50, "seq_len": 32, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose base or smoke")
    return config
