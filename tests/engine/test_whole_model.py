"""Whole models: float against a plain forward, contract against CPU by hash, one hash for every way to cut the work."""

import hashlib

import numpy as np
import pytest
from plain_llama import forward
from tiny import write_tiny_llama

from strata import _native
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams


def logits(path, tokens, prefill=512, **options):
    engine = Engine.load(path, EngineOptions(max_model_len=1024, prefill=prefill, **options))
    return np.concatenate(list(engine.logits(tokens)))


def digest(rows):
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).tobytes()).hexdigest()


def nrmse(got, want):
    return float(
        np.sqrt(np.mean((got.astype(np.float64) - want) ** 2) / np.mean(want.astype(np.float64) ** 2))
    )


@pytest.mark.parametrize("biases", [True, False])
def test_float_reference_is_a_plain_forward(tmp_path, tokens, biases):
    path = write_tiny_llama(tmp_path / "m.gguf", seed=2, biases=biases)
    got = logits(path, tokens, backend="reference", kv="f32")
    assert nrmse(got, forward(path, tokens)) <= 1e-5


def test_the_bound_catches_another_sequence(tmp_path, tokens):
    with_biases = write_tiny_llama(tmp_path / "a.gguf", seed=2)
    assert (
        nrmse(logits(with_biases, tokens, backend="reference", kv="f32"), forward(with_biases, tokens[::-1]))
        > 0.1
    )


SCALINGS = {
    "linear": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        lambda f: (f / 4, 1.0),
    ),
    "yarn": (
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 256,
        },
        lambda f: yarn(f, 4.0, 256),
    ),
}


def yarn(frequencies, factor, original, fast=32.0, slow=1.0):
    """YaRN by wavelengths: pairs that turn often keep their speed, slow ones are interpolated, a ramp between.

    The ramp's ends are dimensions rounded outwards, as in the paper's published code.
    """
    n = len(frequencies)
    dims = np.arange(n)
    turns = original * frequencies / (2 * np.pi)
    # dimension at which `r` turns are made: turns fall geometrically with the dimension
    slope = (np.log(turns[-1]) - np.log(turns[0])) / (n - 1)
    low = np.floor((np.log(fast) - np.log(turns[0])) / slope)
    high = np.ceil((np.log(slow) - np.log(turns[0])) / slope)
    keep = 1 - np.clip((dims - max(low, 0)) / (min(high, 2 * n - 1) - max(low, 0)), 0, 1)
    return frequencies * keep + frequencies / factor * (1 - keep), 0.1 * np.log(factor) + 1


@pytest.mark.parametrize("kind", SCALINGS)
def test_rope_scaling(tmp_path, tokens, kind):
    metadata, scaled = SCALINGS[kind]
    path = write_tiny_llama(tmp_path / "m.gguf", seed=3, **metadata)
    got = logits(path, tokens, backend="reference", kv="f32")
    frequencies, magnitude = scaled(1e4 ** -(np.arange(0, 32, 2) / 32))
    assert nrmse(got, forward(path, tokens, frequencies, magnitude)) <= 1e-5
    assert nrmse(got, forward(path, tokens)) > 1e-2, "without the scaling it must differ"


def test_cpu_is_the_contract_and_near_float(tiny_llama, tokens):
    contract = logits(tiny_llama, tokens[:70], backend="contract", kv="f16")
    cpu = logits(tiny_llama, tokens[:70], threads=2)
    assert digest(cpu) == digest(contract)
    reference = logits(tiny_llama, tokens[:70], backend="reference", kv="f16")
    assert 1e-4 < nrmse(contract, reference) < 0.06


def test_one_hash_for_threads_chunks_and_instruction_sets(tiny_llama, tokens):
    want = digest(logits(tiny_llama, tokens, threads=1, prefill=0))
    for threads, prefill in ((2, 0), (1, 1), (2, 7), (1, 64), (2, 128), (1, 512)):
        assert digest(logits(tiny_llama, tokens, threads=threads, prefill=prefill)) == want, (
            threads,
            prefill,
        )
    for isa in _native.isa_levels():
        assert digest(logits(tiny_llama, tokens, isa=isa)) == want, isa
    changed = [*tokens[:-2], tokens[-2] ^ 1, tokens[-1]]
    assert digest(logits(tiny_llama, changed, threads=1, prefill=0)) != want


def test_decode_gives_the_rows_that_reading_gives(tiny_llama, tokens):
    """Greedy decode, one token a step, agrees with the teacher-forced rows of the text it wrote."""
    engine = Engine.load(tiny_llama, EngineOptions(max_model_len=1024))
    prompt = tokens[:66]
    output = list(engine.generate(prompt, SamplingParams(max_tokens=40)))
    rows = np.concatenate(list(engine.logits(prompt + output)))
    assert rows[len(prompt) - 1 : -1].argmax(-1).tolist() == output


@pytest.mark.parametrize("count", [2, 3, 8])
def test_sequences_do_not_touch_each_other(tiny_llama, tokens, count):
    """Requests run together sample what each samples alone, at a temperature, whatever shares the step."""
    options = EngineOptions(max_model_len=1024, max_num_seqs=count, prefill=64)
    prompts = [tokens[i : 2 * i + 30] for i in range(count)]
    sampling = [
        SamplingParams(max_tokens=20, temperature=1.5, seed=i, repetition_penalty=1.1 if i % 2 else 1.0)
        for i in range(count)
    ]
    alone = Engine.load(tiny_llama, options)
    want = [list(alone.generate(p, s)) for p, s in zip(prompts, sampling, strict=True)]
    together = Engine.load(tiny_llama, options)
    requests = [together.add(p, s) for p, s in zip(prompts, sampling, strict=True)]
    while any(r.finish_reason is None for r in requests):
        together.step()
    assert [r.output_token_ids for r in requests] == want
    assert len({tuple(w) for w in want}) == count


def test_smollm2_knows_paris(smollm2_path):
    engine = Engine.load(smollm2_path, EngineOptions(max_model_len=256))
    assert (
        next(engine.generate([504, 3575, 282, 4649, 314], SamplingParams(max_tokens=1))) == 7042
    )  # " Paris"


def test_smollm2_cpu_is_the_contract(smollm2_path):
    prompt = [504, 3575, 282, 4649, 314, 7042, 30]
    rows = [logits(smollm2_path, prompt, backend=backend) for backend in ("contract", "cpu")]
    assert digest(rows[0]) == digest(rows[1])
