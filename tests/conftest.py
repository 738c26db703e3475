"""Fixtures that every part's tests may use."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import VOCAB, write_tiny_llama

ROOT = Path(__file__).resolve().parent.parent

# pytest prints whole differences where CI is set: an hour of difflib for 200 KB of unequal logits.
if os.environ.pop("CI", ""):
    os.environ["TESTS_ARE_STRICT"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What all tests share lives to the end: the collector of garbage need not look at it after every test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fetched() -> Callable[[str, str], Path]:
    """What a script of `scripts/` fetches, if absent. Where that fails: a failure in CI, a skip elsewhere."""

    def fetch(script: str, what: str) -> Path:
        command = [sys.executable, str(ROOT / "scripts" / script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = f"no {what}: {done.stderr.strip().splitlines()[-1]}"
            if os.environ.get("TESTS_ARE_STRICT"):
                pytest.fail(reason)
            pytest.skip(reason)
        return Path(done.stdout.strip())

    return fetch


@pytest.fixture(scope="session")
def smollm2_path(fetched: Callable[[str, str], Path]) -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return fetched("fetch_model.py", "SmolLM2 model")


@pytest.fixture(scope="session")
def jargon_text() -> str:
    """11 KB of public-domain English (tests/data/README.md)."""
    return (ROOT / "tests" / "data" / "jargon.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A random llama of mixed block types, biases included."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tokens():
    """150 token ids: two whole blocks of 64 and a tail."""
    return np.random.default_rng(5).integers(0, VOCAB, 150).tolist()
