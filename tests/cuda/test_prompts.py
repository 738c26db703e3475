"""Prompts in the chunk form on the emulated device: one hash for any chunk and split, steps between a chunk's layers,
checkpoints and sessions; what it must agree with is the CPU's chunk form."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from late_driver import LateDriver

from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import load_model

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = sorted(p.parent.name for p in GOLDENS.glob("*/model.gguf"))
WHOLE = ["llama", "qwen4exp-quantised"]
BOUND = 2e-3  # NRMSE between devices (docs/contract.md)


def device(driver=EmulatedDriver):
    return CudaBackend(driver(), slab_bytes=1 << 20, input_bytes=1 << 18)


def engine(name, backend=None, **more):
    path = GOLDENS / name / "model.gguf"
    options = EngineOptions(device="cpu", **{"max_model_len": 256, "prefill": 256, **more})
    return Engine.load(path, options) if backend is None else Engine(load_model(path, options, None, backend))


def text(name, count):
    tokens = np.load(GOLDENS / name / "tokens.npy").tolist()
    return (tokens * 10)[:count]


def logits(engine, tokens, prefill=None):
    return np.concatenate(list(engine.logits(tokens, prefill)))


def digest(rows):
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_cpu(name):
    """Both forms: a block and a tail."""
    tokens = text(name, 80)
    want, got = (logits(engine(name, b, max_model_len=128), tokens) for b in (None, device()))
    error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
    assert error <= BOUND
    other = logits(engine(name, max_model_len=128), [*tokens[:60], tokens[60] ^ 1, *tokens[61:]])
    assert (
        np.sqrt(np.mean((other - want) ** 2) / np.mean(want**2)) > 10 * BOUND
    )  # one token changed: it shows


@pytest.mark.parametrize("name", WHOLE)
def test_any_chunk_has_one_hash(name):
    tokens, gpu = text(name, 131), engine(name, device(), prefill=128)
    hashes = {digest(logits(gpu, tokens, chunk)) for chunk in (64, 128)}
    assert len(hashes) == 1
    assert digest(logits(gpu, [tokens[0] ^ 1, *tokens[1:]])) not in hashes


def answers(engine, prompts, arrive_every=0, **more):
    """Output tokens of every prompt, and how much of it was known; one comes every `arrive_every` steps."""
    seeds = [
        SamplingParams(max_tokens=4, temperature=1.0, seed=i, ignore_eos=True) for i in range(len(prompts))
    ]
    requests, steps = [], 0
    while len(requests) < len(prompts) or any(r.finish_reason is None for r in requests):
        if len(requests) < len(prompts) and (not arrive_every or steps % arrive_every == 0):
            requests.append(engine.add(prompts[len(requests)], seeds[len(requests)], **more))
        engine.step()
        steps += 1
    assert not any(r.error for r in requests)
    return [(r.output_token_ids, r.num_cached_tokens) for r in requests]


@pytest.mark.parametrize("name", WHOLE)
def test_steps_between_the_layers_of_a_chunk(name, monkeypatch):
    """With budgets that let one layer run a step, others decode inside a chunk; both have the tokens of before."""
    prompts = [text(name, n) for n in (9, 130)]
    alone = answers(engine(name, device(), max_num_seqs=2, prefill=128), prompts)
    monkeypatch.setattr("strata.engine.reader.ALONE_MS", 0.0)
    monkeypatch.setattr("strata.engine.reader.MOST_CREDIT_MS", 1e-6)
    gpu = engine(name, device(LateDriver), max_num_seqs=2, prefill=128)
    parts, read = [], gpu._runner._read

    def note(plan, output):
        parts.append(plan.prompt.part if plan.prompt else 0)
        read(plan, output)

    monkeypatch.setattr(gpu._runner, "_read", note)
    assert answers(gpu, prompts, arrive_every=2) == alone
    assert max(parts) > 0  # the chunk did stand still
    assert gpu._runner.backend.driver.most > 2  # and was not waited for


@pytest.mark.parametrize("name", WHOLE)
def test_a_prefix_that_was_read_is_gone_on_from(name):
    """A second prompt begins with the first one's blocks: taps and pages written by chunks give what it has cold."""
    first, second = text(name, 140), [*text(name, 130), *text(name, 10)[::-1]]
    gpu = engine(name, device(), prefill=128)
    cold = answers(gpu, [second])
    gpu.forget()
    answers(gpu, [first], cache_points=(130,))
    assert cold[0][1] == 0
    assert answers(gpu, [second]) == [(cold[0][0], 128)]


def test_a_faulty_chunk_ends_its_request_alone():
    gpu = engine("qwen4exp-quantised", device(), max_num_seqs=2)
    good = gpu.add(text("llama", 20), SamplingParams(max_tokens=30, ignore_eos=True))
    while not good.output_token_ids:
        gpu.step()
    bad = gpu.add(text("qwen4exp", 128), SamplingParams(max_tokens=4))
    rows = gpu._runner._rows
    write = rows.taps

    def spoil(taps):
        write(taps)
        gpu._runner._at[gpu._runner._buffers.chunk.sequences][70] = 999

    rows.taps = spoil
    while bad.finish_reason is None:
        gpu.step()
    assert bad.finish_reason == "error" and "outside its table" in str(bad.error)
    rows.taps = write
    while good.finish_reason is None:
        gpu.step()
    assert good.finish_reason == "length" and good.error is None
    again = gpu.add(text("qwen4exp", 128), SamplingParams(max_tokens=4, ignore_eos=True))
    while again.finish_reason is None:
        gpu.step()
    assert again.finish_reason == "length"
