"""Prompts of many chunks: one hash however they are cut, past the budget of sparse attention."""

import hashlib

import numpy as np
import pytest

from strata.config import EngineOptions
from strata.engine import Engine
from strata.synth import TinyOptions, tiny_geometry, uniform_types, write_tiny

TOKENS = [int(t) for t in np.random.default_rng(9).integers(0, 250, 1300)]
NAMES = ["qwen35", "qwen35moe", "qwen3next", "qwen4exp"]
ALL_AT_ONCE = 1344  # whole blocks of 64 that hold every token


@pytest.fixture(scope="module")
def hashed(tmp_path_factory):
    """Hash of a tiny model's logits."""
    directory = tmp_path_factory.mktemp("tiny")
    for name in NAMES:
        write_tiny(directory / f"{name}.gguf", TinyOptions(tiny_geometry(name), uniform_types("Q8_0")))

    def run(name, prefill, tokens=TOKENS):
        options = EngineOptions(threads=2, max_model_len=len(tokens), prefill=prefill)
        digest = hashlib.sha256()
        for rows in Engine.load(directory / f"{name}.gguf", options).logits(tokens):
            digest.update(rows.tobytes())
        return digest.hexdigest()

    return run


@pytest.mark.parametrize("name", NAMES)
def test_chunk_sizes_give_one_hash(name, hashed):
    want = hashed(name, 64)
    for prefill in (128, 640, ALL_AT_ONCE):
        assert hashed(name, prefill) == want, prefill
    assert hashed(name, 640, [*TOKENS[:700], TOKENS[700] ^ 1, *TOKENS[701:]]) != want
