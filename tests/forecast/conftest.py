"""Programs for TPUs that are not there."""

import importlib.util

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """JAX's cache takes programs for chips that are not there, but cannot give them back."""
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")


@pytest.fixture(autouse=True, scope="session")
def compiler():
    """libtpu, which compiles on any machine; without it nothing of this folder can be tested."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install '.[tpu]'")
