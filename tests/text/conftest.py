"""Fixtures of the tokenizer tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def vocabularies(fetched) -> Path:
    """Directory of llama.cpp's test vocabularies, each with texts (.inp) and their ids (.out)."""
    return fetched("fetch_vocabularies.py", "test vocabularies")
