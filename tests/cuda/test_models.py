"""Whole models: the logits of golden files on the device have the CPU's hash, in the step form."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from strata.config import EngineOptions
from strata.engine import Engine, Pooling, SamplingParams
from strata.engine.load import load_model

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = sorted(p.parent.name for p in GOLDENS.glob("*/model.gguf"))


def digest(engine, tokens):
    rows = np.concatenate(list(engine.logits(tokens)))
    return hashlib.sha256(rows.tobytes()).hexdigest()


def engines(path, backend, **more):
    options = EngineOptions(device="cpu", **{"max_model_len": 256, "prefill": 0, **more})
    return Engine.load(path, options), Engine(load_model(path, options, None, backend()))


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name, backend):
    cpu, device = engines(GOLDENS / name / "model.gguf", backend, max_model_len=128)
    tokens = np.load(GOLDENS / name / "tokens.npy").tolist()[:20]
    assert digest(device, tokens) == digest(cpu, tokens)
    assert digest(device, tokens) != digest(cpu, [*tokens[:-1], tokens[-1] ^ 1])


@pytest.mark.parametrize("kv", ["f32", "int8", "k8v4", "q4"])
def test_key_and_value_types(kv, tiny_llama, tokens, backend):
    cpu, device = engines(tiny_llama, backend, kv=kv)
    assert digest(device, tokens[:70]) == digest(cpu, tokens[:70])


def test_embeddings(tiny_llama, tokens, backend):
    """The features of every row of a prompt, those of chunks too."""
    vectors = []
    for engine in engines(tiny_llama, backend, prefill=64):
        pooling = Pooling("mean")
        engine.add(tokens[:100], SamplingParams(max_tokens=1), pooling=pooling)
        while engine.has_work:
            engine.step()
        vectors.append(pooling.vector())
    cpu, cuda = vectors  # a prompt's blocks of 64 agree between devices to 2e-3 (docs/contract.md)
    assert np.linalg.norm(cuda - cpu) < 2e-3 * np.linalg.norm(cpu)


def test_requests_together(tiny_llama, tokens, backend):
    """Several sequences at once, with penalties and temperatures, give the CPU's tokens."""
    sampling = [
        SamplingParams(max_tokens=8, temperature=t, seed=i, repetition_penalty=p, top_p=q)
        for i, (t, p, q) in enumerate([(0.0, 1.0, 1.0), (1.2, 1.1, 1.0), (0.8, 1.0, 0.9)])
    ]
    outputs = []
    for engine in engines(tiny_llama, backend, max_num_seqs=3):
        requests = [engine.add(tokens[i : 12 + 5 * i], s) for i, s in enumerate(sampling)]
        while any(r.finish_reason is None for r in requests):
            engine.step()
        outputs.append([r.output_token_ids for r in requests])
    assert outputs[0] == outputs[1]
