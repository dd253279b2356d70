"""Fixtures of fine-tuning objectives."""

import pytest

from tests.data.labeled import letters


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """A tokenizer with one piece per letter."""
    return letters.make(tmp_path_factory.mktemp("letters"))
