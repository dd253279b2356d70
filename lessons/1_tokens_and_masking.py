# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 1: tokens and masking
#
# BERT reads numbers, not letters. In this lesson you write the two steps that come before the model: words become
# tokens, and some of the tokens are hidden. At the end you draw how the size of a vocabulary changes the length of a
# text.
#
# You need Python and NumPy. There are two exercises. Run the cells from top to bottom.

# %%
import os

if os.path.isdir("bertjax/lessons"):  # Colab and Kaggle: the repository is the folder `bertjax` beside this notebook
    os.chdir("bertjax/lessons")
    assert os.system("pip install -q ..") == 0, "bertjax was not installed: run !pip install .. and read why"

# %%
import lesson
import matplotlib.pyplot as plt
import numpy as np

from bertjax.data import sources, tokenizer
from bertjax.data.config import TokenizerConfig

# %% [markdown]
# ## The text
#
# `embedded:en` comes with bertjax: Grimm's tales, Sherlock Holmes, Darwin, Walden, Du Bois and the Federalist Papers.
# Every tenth document is kept aside. The vocabulary is made from the others.

# %%
documents = [document.text for document in sources.documents("embedded:en", "text")]
documents = documents[:: lesson.size(1, 12)]
heldout, train = documents[::10], [text for number, text in enumerate(documents) if number % 10]
print(f"{len(train)} documents to learn from, {len(heldout)} kept aside")

# %% [markdown]
# ## Words become pieces
#
# A table with one number for each word would be very long, and it would lack the next new word. A table of letters is
# short, but then a text has many tokens, and each of them means little. BERT takes a compromise, *WordPiece*: frequent
# words are one piece, and rare words are several pieces.
#
# `##` marks a piece that continues a word.

# %%
pieces = tokenizer.train(train, TokenizerConfig(kind="wordpiece", vocab_size=lesson.size(4000, 1000), lowercase=True))
for text in ("The wolf said: come in.", "Photosynthesis was unknown to Rapunzel."):
    [ids] = pieces.encode([text])
    print(" ".join(map(pieces.piece, ids)))

# %% [markdown]
# ### Exercise 1: split a word
#
# WordPiece cuts a word from left to right. At each place it takes the longest piece that is in the vocabulary. If no
# piece fits at some place, the whole word becomes `[UNK]`.


# %%
def wordpiece(word: str, vocabulary: set[str]) -> list[str]:
    """Return the pieces of a word; `["[UNK]"]` if it cannot be cut into pieces of the vocabulary.

    Args:
      word: a lower-case word, not empty.
      vocabulary: all pieces. A piece inside a word has `##` in front: `wordpiece("unable", {"un", "##able"})` is
        `["un", "##able"]`.
    """
    raise NotImplementedError


# %%
lesson.grade(wordpiece)

# %% [markdown]
# Now compare your function with the tokenizer of bertjax on words that it has not seen. Three have letters that are in
# no piece.

# %%
vocabulary = {pieces.piece(number) for number in range(pieces.vocab_size)}
running_words = [word for text in heldout for word in text.lower().split() if word.isascii() and word.isalpha()]
words = sorted({*running_words, "smørrebrød", "straße", "encyclopædia"})
theirs = [[pieces.piece(number) for number in ids] for ids in pieces.encode(words)]
same = sum(wordpiece(word, vocabulary) == cut for word, cut in zip(words, theirs))
print(f"{same} of {len(words)} words are cut alike")

# %% [markdown]
# ## Some tokens are hidden
#
# BERT learns from a guessing game: about 15% of the tokens are chosen, and the model must say what they were. Devlin et
# al. (2019, section 3.1) replace a chosen token
#
# - by `[MASK]` in 80% of the cases,
# - by a random token in 10%,
# - by itself in 10%: it stays as it is, and the model must still guess it.
#
# Why not always `[MASK]`? The texts of a task contain no `[MASK]`. A model that only has to think at `[MASK]` may
# ignore all other tokens. Since any token may be wrong, it must form an opinion about each of them.
#
# ### Exercise 2: hide tokens
#
# The symbols `[CLS]` and `[SEP]` are in every example at known places, so there is nothing to guess: never choose them.


# %%
def mask_tokens(
    tokens_T: np.ndarray,
    is_special_T: np.ndarray,
    mask_id: int,
    vocab_size: int,
    draw: np.random.Generator,
    rate: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that the model sees, int [T], and which tokens it must guess, bool [T].

    Args:
      tokens_T: the tokens, int [T]. The loss compares guesses with them, so do not change this array.
      is_special_T: which tokens are special symbols, bool [T].
      mask_id: id of `[MASK]`.
      vocab_size: random tokens have ids from 0 to `vocab_size - 1`.
      draw: random numbers; `draw.random(T)` returns T numbers between 0 and 1.
      rate: share of the ordinary tokens to choose. Each is chosen independently of the others.
    """
    raise NotImplementedError


# %%
lesson.grade(mask_tokens)

# %%
draw = np.random.default_rng(0)
[ids] = pieces.encode([heldout[-1][:200]])
tokens_T = np.array([pieces.cls_id, *ids, pieces.sep_id])
is_special_T = np.isin(tokens_T, list(pieces.special_ids))
shown_T, is_chosen_T = mask_tokens(tokens_T, is_special_T, pieces.mask_id, pieces.vocab_size, draw)
text = []
for shown, token, is_chosen in zip(shown_T, tokens_T, is_chosen_T):
    piece = pieces.piece(int(shown))
    text.append(f"({piece} was {pieces.piece(int(token))})" if is_chosen else piece)
print(" ".join(text))

# %% [markdown]
# ## What is a good guess?
#
# Before you train a model, ask what is right without one. Two guesses need no thinking:
#
# - copy what you see: right where the token was left as it is,
# - always say the most frequent token.

# %%
ids = np.concatenate([np.array(row) for row in pieces.encode(heldout)])
shown, is_chosen = mask_tokens(ids, np.isin(ids, list(pieces.special_ids)), pieces.mask_id, pieces.vocab_size, draw)
frequent = np.bincount(np.concatenate([np.array(row) for row in pieces.encode(train)])).argmax()
copied, constant = (shown == ids)[is_chosen].mean(), (ids == frequent)[is_chosen].mean()
print(
    f"copying is right in {copied:.1%}, `{pieces.piece(int(frequent))}` in {constant:.1%} of {is_chosen.sum()} guesses"
)

# %% [markdown]
# ## Your picture: what a vocabulary costs
#
# A larger vocabulary makes texts shorter. The price is a larger table: a model of width 768 stores 768 numbers for each
# piece. Where would you stop?

# %%
sizes = lesson.size([500, 1000, 2000, 4000, 8000, 16000], [500, 1000])
per_word = []
for count in sizes:
    trained = tokenizer.train(train, TokenizerConfig(kind="wordpiece", vocab_size=count, lowercase=True))
    vocabulary = {trained.piece(number) for number in range(trained.vocab_size)}
    per_word.append(np.mean([len(wordpiece(word, vocabulary)) for word in running_words]))
    print(f"{count:>6} pieces: {per_word[-1]:.2f} tokens a word, {count * 768 / 1e6:.1f} million numbers in the table")

figure, axes = plt.subplots(figsize=(5, 3))
axes.plot(sizes, per_word, marker="o")
axes.set(xscale="log", xlabel="pieces in the vocabulary", ylabel="tokens a word", ylim=(1, None))
lesson.picture(figure, "1_vocabulary")

# %% [markdown]
# ## More
#
# - [Masking](../docs/concepts/masking.md): whole words and spans, and why a mask depends on the example and the epoch.
# - [Your language](../docs/guides/your_language.md): other tokenizers, and scripts without spaces.
# - Next: [attention by hand](2_attention_by_hand.py).
