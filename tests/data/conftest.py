import numpy as np
import pytest

from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation import prepare
from bertjax.data.store import TokenStore


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> TokenStore:
    """Sixty documents of made-up words, on disk as any store is."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 7))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(2, 12))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(rng.integers(1, 30))) for _ in range(60)]
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    tokenizer = TokenizerConfig(vocab_size=400)
    return prepare(
        DataConfig(str(folder / "corpus.txt"), heldout_share=0.2, tokenizer=tokenizer, store=str(folder / "stores"))
    )
