"""Contexts beyond the cells that the pretended GPU holds: one hash for every budget."""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from strata.config import EngineOptions
from strata.engine import Engine
from strata.synth import PlantedOptions, tiny_geometry, write_planted

CONTEXT, READ = 8704, 8640


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """Attention in one of four layers, which picks 64 blocks of 4 cells."""
    path = tmp_path_factory.mktemp("long") / "model.gguf"
    geometry = replace(
        tiny_geometry("qwen4exp"), max_position=CONTEXT, index_budget=256, index_heads=1, num_experts=16
    )
    write_planted(path, PlantedOptions(geometry, topics=8, gain=None), 2)
    return path


def run(path, resident, **more):
    """SHA-256 of the last chunk's logits and of 16 steps, and what was counted."""
    options = EngineOptions(
        backend="sim",
        max_model_len=CONTEXT,
        kv_resident=resident,
        kv="int8",
        expert_cache="16",
        prefill=2048,
        **more,
    )
    engine = Engine.load(path, options)
    tokens = np.resize(np.load(f"{path}.cycle.npy"), READ).tolist()
    found = hashlib.sha256()
    for rows in engine.logits(tokens):
        found.update(rows.tobytes())
    return found.hexdigest(), engine.tier_counts(), engine.placement


def test_one_hash_for_every_budget(long_model, monkeypatch):
    """The least that the planner keeps is for rows that select 2048 cells each; these select 256."""
    monkeypatch.setattr(sys.modules["strata.memory.plan"], "LEAST_RESIDENT", 7680)
    every, counts, placement = run(long_model, CONTEXT)
    assert placement.choice.resident == CONTEXT and "kv_hits" not in counts
    for resident in (7680, 8192):
        digest, counts, placement = run(long_model, resident)
        assert digest == every, resident
        assert placement.choice.resident == resident < placement.choice.cells
        assert placement.ram.part("KV copy") > 0
        assert counts["kv_hits"] > 0 and counts["kv_fetches"] > 0
        share = counts["kv_hits"] / (counts["kv_hits"] + counts["kv_fetches"] + counts["kv_streamed"])
        assert share > 0.9, counts
