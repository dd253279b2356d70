# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 4: what next-sentence prediction learns
#
# BERT has a second question beside the masked words: does segment B follow segment A? Half of the time it does, and
# half of the time B is from another document (Devlin et al., 2019, section 3.1). RoBERTa left this question out and
# lost nothing (Liu et al., 2019). ALBERT asks another one, and argues that BERT's was too easy: the *topic* gives the
# answer away (Lan et al., 2020). You test this argument on a small BERT. There are two exercises.

# %%
import os

if os.path.isdir("bertjax/lessons"):  # Colab and Kaggle: the repository is the folder `bertjax` beside this notebook
    os.chdir("bertjax/lessons")
    assert os.system("pip install -q ..") == 0, "bertjax was not installed: run !pip install .. and read why"

# %%
import jax
import jax.numpy as jnp
import lesson
import matplotlib.pyplot as plt
import numpy as np

from bertjax import nano
from bertjax.config.opening import SavedModel

# %% [markdown]
# ## A small BERT
#
# This cell trains a BERT of 2 layers from scratch, with both questions. It takes a few minutes. Lessons 5 and 6 use the
# same model, and a second call only finds it. `nsp_accuracy` is the share of right answers on held-out documents.

# %%
model = SavedModel(lesson.trained()).export
print({name: round(value, 3) for name, value in model.numbers["eval"].items() if name.endswith("accuracy")})

# %% [markdown]
# ## Sentences that it has never seen
#
# The corpus is stored as numbers: all tokens one after another, and where sentences and documents start. The documents
# of `heldout` were kept out of the training. The tokenizer is not WordPiece but a unigram model: `▁` marks a piece
# that starts a word, and pieces inside a word have no mark.

# %%
store = lesson.prepared()
heldout = store.split("heldout")
tokenizer, starts = store.tokenizer, set(np.asarray(heldout.documents).tolist())
documents = []
for number, (start, stop) in enumerate(zip(heldout.sentences[:-1], heldout.sentences[1:])):
    if number in starts:
        documents.append([])
    documents[-1].append([int(token) for token in heldout.tokens[start:stop]])
documents = [sentences for sentences in documents if len(sentences) > 4]
print(f"{len(documents)} documents with {sum(map(len, documents))} sentences; one of them:")
print(" ".join(map(tokenizer.piece, documents[0][3])))

# %% [markdown]
# ## Three kinds of wrong answers
#
# BERT's wrong B is from *another document*. A harder one is from *another place* of the same document: the topic is
# right. The hardest is A and B in the *wrong order*: every word is right.
#
# ### Exercise 1: draw the first two


# %%
def wrong_sentences(documents, document, place, draw):
    """Return two sentences that do not follow sentence `place` of a document: (of another document, of the same one).

    Args:
      documents: at least two documents, each a list of at least four sentences, each a list of tokens.
      document: index of the document of A.
      place: index of A in its document; it is not the last sentence.
      draw: `draw.integers(n)` returns a random integer from 0 to n - 1.

    The sentence of the same document is neither A itself nor the true next one.
    """
    raise NotImplementedError


# %%
lesson.grade(wrong_sentences)

# %% [markdown]
# ## How to compare
#
# Accuracy needs a threshold: from which probability on is the answer "random"? Here is a measure without one. Show the
# judge a true B and a wrong B, and count how often the true one gets the higher score. Guessing gives 50%.
#
# ### Exercise 2: the share of pairs in the right order


# %%
def pairwise_accuracy(true_scores_P, wrong_scores_P):
    """Return how often the true sentence of a pair has the higher score, from 0 to 1.

    Args:
      true_scores_P, wrong_scores_P: float [P], the scores of the true and of the wrong sentence of each pair. Scores
        may be equal: who cannot tell them apart has to guess, and is right in half of the cases.
    """
    raise NotImplementedError


# %%
lesson.grade(pairwise_accuracy)

# %% [markdown]
# ## Two judges
#
# The first judge has no model. It counts the tokens that A and B have in common. A rare token counts more: each counts
# with $-\ln$ of its share of the text.

# %%
counts_V = store.unigram_counts("train")
information_V = -np.log(np.maximum(counts_V, 1) / counts_V.sum())


def common_words(a, b):
    return sum(information_V[token] for token in set(a) & set(b))


# %% [markdown]
# The second judge is the model. A pair is written as `[CLS] A [SEP] B [SEP]`. The head of the question reads the state
# of `[CLS]`. A row has 32 tokens as in training, so a sentence has at most 14: the end of A, and the start of B.

# %%
HALF = 14


def row(a, b):
    """Return the arrays of one row, by name."""
    tokens = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    columns, padding = np.arange(32), 32 - len(tokens)
    return {
        "tokens_BT": np.pad(tokens, (0, padding), constant_values=tokenizer.pad_id),
        "segments_BT": (columns > len(a) + 1) & (columns < len(tokens)),
        "positions_BT": columns,
        "examples_BT": columns < len(tokens),
    }


@jax.jit
def log_probability_next(params, batch):
    cls_BD = nano.encode(params["encoder"], batch, lesson.config().model.heads)[:, 0]
    summary_BD = jnp.tanh(nano.dense(params["encoder"]["pooler"], cls_BD))
    return jax.nn.log_softmax(nano.dense(params["heads"]["nsp"]["classifier"], summary_BD))[:, 0]  # class 0: B is next


def by_model(pairs):
    rows = [row(a, b) for a, b in pairs]
    batch = {name: np.stack([one[name] for one in rows]).astype(np.int32) for name in rows[0]}
    return np.asarray(log_probability_next(model.params, batch))


# %% [markdown]
# ## Your picture: which wrong answers does it notice?
#
# Before you run it: what do you expect for each of the three?

# %%
draw, triples = np.random.default_rng(0), []
for _ in range(lesson.size(2000, 100)):
    document = int(draw.integers(len(documents)))
    place = int(draw.integers(len(documents[document]) - 1))
    a, b = documents[document][place : place + 2]
    # Cut before the order is changed, so that both orders have the same words.
    other, same = (sentence[:HALF] for sentence in wrong_sentences(documents, document, place, draw))
    a, b = a[-HALF:], b[:HALF]
    triples.append({"true": (a, b), "another document": (a, other), "another place": (a, same), "wrong order": (b, a)})

judges = {"common words": lambda pairs: np.array([common_words(a, b) for a, b in pairs]), "the model": by_model}
kinds, result = ["another document", "another place", "wrong order"], {}
for judge, score in judges.items():
    scores = {kind: score([triple[kind] for triple in triples]) for kind in ("true", *kinds)}
    result[judge] = [pairwise_accuracy(scores["true"], scores[kind]) for kind in kinds]
    print(f"{judge:>12}: " + ", ".join(f"{kind} {share:.1%}" for kind, share in zip(kinds, result[judge])))

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for number, (judge, shares) in enumerate(result.items()):
    axes.bar(np.arange(3) + 0.4 * number, 100 * np.array(shares) - 50, width=0.38, bottom=50, label=judge)
axes.axhline(50, color="gray", linestyle="--")  # guessing
axes.set(xticks=np.arange(3) + 0.2, xticklabels=kinds, ylabel="true B scores higher [%]", ylim=(40, 100))
axes.legend()
lesson.picture(figure, "4_wrong_answers")

# %% [markdown]
# With 2,000 pairs, chance alone moves a share by about 1% up or down. So a difference of 2% between two bars means
# little. One training is also one seed: another one ends elsewhere.
#
# ## Look twice at a surprise
#
# Does the model notice the wrong order more often than another place? Both sentences are the same in both orders, so it
# must know something about order. But look at what a row shows: of a long B the end is cut off, and of a long A the
# start. In the wrong order, the first sentence stops in the middle. To notice that, a full stop is enough. Count again,
# with the end of both sentences, so that both orders are cut alike:

# %%
ends = []
for _ in triples:
    document = documents[int(draw.integers(len(documents)))]
    place = int(draw.integers(len(document) - 1))
    ends.append((document[place][-HALF:], document[place + 1][-HALF:]))
share = pairwise_accuracy(by_model(ends), by_model([(b, a) for a, b in ends]))
print(f"wrong order, both cut alike: {share:.1%}")

# %% [markdown]
# ## More
#
# - ALBERT's question is `sentence_order` among the [objectives](../docs/guides/objectives.md); change `lesson.config`,
#   train again and draw the same picture.
# - [The relatives of BERT, trained alike](../docs/results/family.md): what leaving the question out changed there.
# - Next: [look inside](5_look_inside.py).
