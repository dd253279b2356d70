"""Helpers for the tests of sources: read a whole corpus, or return the error of a bad one."""

import pytest

from bertjax.data import sources
from bertjax.runtime.errors import UserError


def read(corpus, text_field="text", **listeners):
    return list(sources.documents(str(corpus), text_field, **listeners))


def texts(corpus, text_field="text"):
    return [document.text for document in read(corpus, text_field)]


def error_of(corpus, text_field="text"):
    """Return the error of a corpus, which is one line."""
    with pytest.raises(UserError) as caught:
        read(corpus, text_field)
    message = str(caught.value)
    assert "\n" not in message
    return message


def skipping(corpus, text_field="text"):
    """Return the good texts, and the errors of the bad ones."""
    errors = []
    left = read(corpus, text_field, on_bad=errors.append)
    return [document.text for document in left], [str(error) for error in errors]
