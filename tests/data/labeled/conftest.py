"""What the tests of labeled files share."""

import pytest

from tests.data.labeled import letters


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """A tokenizer that spells."""
    return letters.make(tmp_path_factory.mktemp("letters"))
