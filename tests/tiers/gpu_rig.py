"""Engines over a planted model whose experts lie in tiers of a GPU, emulated or not."""

import hashlib
from dataclasses import replace

import numpy as np

from strata.config import EngineOptions
from strata.engine import Engine
from strata.engine.load import load_model
from strata.synth import PlantedOptions, tiny_geometry, write_planted

GEOMETRY = replace(
    tiny_geometry("qwen4exp"),
    num_layers=4,
    hidden_size=256,
    stream_rank=32,
    num_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=256,
    shared_intermediate_size=256,
)

ROWS = (1, 3, 9)  # of steps: programs of one row, of rows that are not there, of experts in groups
EVERY = (1, 2, 3, 7, 9, 17)  # a program of every bucket


def write_model(path, **types):
    """A model whose steps of few rows go through the fused launches; planes of the given types."""
    write_planted(path, PlantedOptions(GEOMETRY, types=types, topics=8, gain=None), 2)
    return path


class GpuRig:
    """`slots`: experts that VRAM holds; those that come first, in every layer, unless the policy moves them."""

    def __init__(self, path, backend, slots=0, share="0", policy=False, **more):
        options = EngineOptions(
            device="cpu",
            max_model_len=192,
            threads=4,
            expert_cache=str(slots),
            cpu_share=share,
            **{"prefill": 0, **more},
        )
        self.loaded = load_model(path, options, None, backend)
        self.backend, self.device = backend, backend.device
        self.engine = Engine(self.loaded)
        self.tokens = np.load(f"{path}.cycle.npy").tolist()
        self.policy = self.loaded.policy
        if self.policy is not None and not policy:
            self.policy.close()
        self.layers = len(backend.tier.blob_bytes)
        backend.fill((i, e) for e in range(backend.num_experts) for i in range(self.layers))

    def digest(self, rows=ROWS):
        return digest(self.engine, self.tokens, rows)

    def launches(self, rows):
        return self.loaded.runner.programs.of("step", rows).replay.launches

    def counts(self):
        return self.loaded.tier_counts()


def digest(engine, tokens, rows=ROWS):
    """SHA-256 of the logits of steps of so many rows each, one after another."""
    teacher, found, at = engine._teacher(tokens[:1], "logits"), hashlib.sha256(), 0
    for count in rows:
        for piece in teacher.read("step", at, tokens[at : at + count], range(count)):
            found.update(np.ascontiguousarray(piece).tobytes())
        at += count
    engine._runner.pages.free(0)
    return found.hexdigest()
