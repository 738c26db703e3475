import numpy as np
import pytest
from tiny import VOCAB, write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A random llama of mixed block types, biases included."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tokens():
    """150 token ids: two whole blocks of 64 and a tail."""
    return np.random.default_rng(5).integers(0, VOCAB, 150).tolist()
