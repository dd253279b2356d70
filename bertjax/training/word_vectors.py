"""`init_words`: word embeddings and the output's bias start from counts of the training text.

A masked language model first learns how often each token occurs and then which tokens occur together, for hundreds of
steps. Both can be counted in seconds. The bias starts at the log of the frequencies, and the embeddings, which are the
output's weights too, at the singular vectors of the tokens' mutual information (Levy & Goldberg, 2014, "Neural word
embedding as implicit matrix factorization"), with the settings of Levy, Goldberg & Dagan (2015), sections 3.1 to 3.3.
"""

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.models import disentangled_embeddings
from bertjax.training.param_paths import leaves_of
from bertjax.training.setup import Setup

# Tokens on each side that count as a token's context. A window may reach into the next document, as a few do.
_WINDOW = 5
# Frequent contexts would hide the others: their counts are raised to this power.
_SMOOTHING = 0.75
# More text changes the vectors of frequent tokens little, and rare ones learn from training.
_MOST_TOKENS = 20_000_000
# Rounds and further dimensions of the random projection (Halko, Martinsson & Tropp, 2011, algorithm 4.4).
_ROUNDS, _MORE = 3, 32


def initial_params(store: TokenStore, setup: Setup, seed: int) -> dict[str, np.ndarray]:
    """Return {path: float32 array} for the word tables and output biases of a model."""
    encoder = setup.encoder
    counts_V = np.zeros(encoder.padded_vocab_size)
    counts_V[: encoder.vocab_size] = store.unigram_counts("train")
    vectors_VE = word_vectors(store.split("train").tokens[:_MOST_TOKENS], len(counts_V), encoder.embedded_width, seed)
    # As long as random rows are, so that the sum with positions and segments is as it was tuned.
    vectors_VE *= encoder.init_stddev * encoder.embedded_width**0.5
    # Tokens that do not occur count half a time. The mean is 0, as the other biases start.
    bias_V = np.log(np.maximum(counts_V, 0.5))
    bias_V -= bias_V[: encoder.vocab_size].mean()
    starts = {"word": vectors_VE, "word_bias": bias_V.astype(np.float32)}
    own = f"{disentangled_embeddings.ROOT}/"  # what a discriminator adds to the generator's table starts at 0
    paths = (path for path in leaves_of(setup.shapes["params"]) if not path.startswith(own))
    return {path: starts[end] for path in paths if (end := path.rpartition("/")[2]) in starts}


def word_vectors(tokens_N: np.ndarray, vocab_size: int, width: int, seed: int) -> np.ndarray:
    """Return vectors of length 1 whose products follow how often tokens occur near each other; float32 [V, width].

    They are randomly rotated, so that all coordinates are alike. Tokens that do not occur have random vectors.
    """
    from scipy.sparse import csr_array  # slow to import

    one_way = csr_array((vocab_size, vocab_size), dtype=np.float32)
    for k in range(1, _WINDOW + 1):
        once = np.ones(len(tokens_N[k:]), np.float32)
        one_way += csr_array((once, (tokens_N[:-k], tokens_N[k:])), shape=one_way.shape)
    pairs = (one_way + one_way.T).tocoo()
    counts_V = pairs.sum(axis=1)
    contexts_V = counts_V**_SMOOTHING / np.sum(counts_V**_SMOOTHING)
    # Pointwise mutual information: log of p(token, context) / (p(token) p(context)). Negative values say little.
    rows, columns = pairs.coords
    information = np.maximum(np.log(pairs.data / (counts_V[rows] * contexts_V[columns])), 0.0)
    matrix = csr_array((information.astype(np.float32), (rows, columns)), shape=pairs.shape)

    random = np.random.default_rng(seed)
    basis_VK = random.standard_normal((vocab_size, min(width + _MORE, vocab_size))).astype(np.float32)
    for _ in range(_ROUNDS):
        basis_VK, _ = np.linalg.qr(matrix @ (matrix.T @ basis_VK))
    left_KK, values_K, _ = np.linalg.svd((matrix.T @ basis_VK).T, full_matrices=False)
    vectors_VE = (basis_VK @ left_KK * values_K**0.5)[:, :width]
    vectors_VE = vectors_VE @ np.linalg.qr(random.standard_normal((vectors_VE.shape[1], width)).T)[0].T
    vectors_VE = np.where(counts_V[:, None] > 0, vectors_VE, random.standard_normal(vectors_VE.shape))
    lengths_V1 = np.maximum(np.linalg.norm(vectors_VE, axis=1, keepdims=True), 1e-30)  # 0 in a text of one token
    return (vectors_VE / lengths_V1).astype(np.float32)
