"""Fixtures of the tests of labeled files."""

import pytest

from tests.data.labeled import letters


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """A tokenizer with one token per letter."""
    return letters.make(tmp_path_factory.mktemp("letters"))
