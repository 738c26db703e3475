"""One model for all tests of the tiers, and the hash that none of them may change."""

import pytest
from rig import rig, write_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiers") / "planted.gguf")


@pytest.fixture(scope="session")
def wanted(model_path):
    """The hash of the plain CPU backend over the mapped file."""
    return rig(model_path).digest()
