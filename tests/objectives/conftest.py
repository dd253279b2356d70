"""Fixtures of fine-tuning objectives: a tokenizer with one piece per letter."""

from tests.data.labeled.conftest import spelling  # noqa: F401 - the fixture
