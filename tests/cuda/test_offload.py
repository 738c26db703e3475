"""Layers on the CPU beside a GPU: the bits of the CPU alone, wherever the cut lies; how many, by the plan."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from golden import ALL
from tiny import LAYERS, write_tiny_llama

from backends.harness import nrmse
from strata import hw
from strata.backends.cuda import CudaBackend
from strata.backends.split import SplitReplay
from strata.config import EngineOptions
from strata.engine import Engine, Pooling, SamplingParams
from strata.engine.load import load_model
from strata.engine.offload import layer_bytes
from strata.engine.planning import plan_file
from strata.errors import MemoryLimitError, UnsupportedError, UsageError
from strata.gguf import open_model
from strata.synth import (
    DENSE,
    DenseOptions,
    TinyOptions,
    tiny_geometry,
    uniform_types,
    write_dense,
    write_tiny,
)

GIB, MIB = 1 << 30, 1 << 20


class Card(CudaBackend):
    """The emulated device as a GPU that the plan knows."""

    gpu = hw.Gpu("emulated", 16 * GIB, 16 * GIB)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def card():
    return Card(EmulatedDriver(), slab_bytes=1 << 20, input_bytes=1 << 18)


def engines(path, layers, backend=None, **more):
    options = EngineOptions(device="cpu", **{"prefill": 0, "max_model_len": 256, "max_num_seqs": 3, **more})
    split = load_model(path, replace(options, offload_layers=str(layers)), None, backend or card())
    return Engine.load(path, options), Engine(split)


def logits(engine, tokens):
    return np.concatenate(list(engine.logits(tokens)))


def play(engine):
    """Several sequences at once, with penalties and temperatures, and one that goes on from an earlier one."""
    sampling = SamplingParams(max_tokens=70, temperature=0.8, seed=1, repetition_penalty=1.2, ignore_eos=True)
    requests = [engine.add([3 + i, 9, 11 + 3 * i], replace(sampling, seed=i)) for i in range(3)]
    while any(r.finish_reason is None for r in requests):
        engine.step()
    first = requests[0]
    again = engine.add([*first.prompt_token_ids, *first.output_token_ids, 5], replace(sampling, max_tokens=4))
    while again.finish_reason is None:
        engine.step()
    assert again.num_cached_tokens > 64
    return [r.output_token_ids for r in (*requests, again)]


@pytest.mark.parametrize("layers", [1, LAYERS - 1])
def test_the_bits_are_those_of_the_cpu(tiny, layers):
    cpu, split = engines(tiny, layers)
    tokens = np.random.default_rng(1).integers(0, 300, 90).tolist()
    assert logits(split, tokens).tobytes() == logits(cpu, tokens).tobytes()
    assert play(split) == play(cpu)


def test_another_architecture(tmp_path):
    write_tiny(tmp_path / "tiny.gguf", TinyOptions(tiny_geometry("qwen3"), uniform_types("Q8_0")))
    cpu, split = engines(tmp_path / "tiny.gguf", 3)
    tokens = np.random.default_rng(2).integers(0, 250, 70).tolist()
    assert logits(split, tokens).tobytes() == logits(cpu, tokens).tobytes()


def test_the_device_holds_its_own_layers_alone(tiny):
    _, split = engines(tiny, 2)
    backend, file = split._runner.backend, open_model(tiny)
    replay = split._runner.programs.of("step", 1).replay
    assert isinstance(replay, SplitReplay)
    held = backend.device._weights.nbytes
    whole = sum(t.nbytes for t in file.tensors.values())
    assert held < whole - layer_bytes(file, 2) + (1 << 20)  # a slab's rest
    kv = split._runner.state.kv.layers
    assert isinstance(backend.array(kv[0].k), np.ndarray) and isinstance(backend.array(kv[1].k), np.ndarray)
    assert not isinstance(backend.array(kv[2].k), np.ndarray)


def test_a_residual_that_does_not_cross_is_seen(tiny):
    cpu, split = engines(tiny, 1)
    for lowered in split._runner.programs.step_of:
        lowered.replay._crossings.clear()
    tokens = [5, 9, 17]
    assert logits(split, tokens).tobytes() != logits(cpu, tokens).tobytes()


@pytest.mark.parametrize("layer", [0, 2])
def test_a_fault_of_either_part_ends_its_request_alone(tiny, layer):
    """A key that is not finite, on the CPU or on the device."""
    cpu, split = engines(tiny, 1)
    want = play_two(cpu)[1].output_token_ids
    failed, other = play_two(split, layer)
    assert failed.finish_reason == "error" and "non-finite" in str(failed.error)
    assert other.finish_reason == "length" and other.output_token_ids == want


def play_two(engine, damaged=None):
    sampling = SamplingParams(max_tokens=10, ignore_eos=True)
    pair = engine.add([1, 2, 3], sampling), engine.add([4, 5, 6], sampling)
    for step in range(16):
        if damaged is not None and step == 4:
            runner = engine._runner
            page = runner.pages.pages(pair[0].sequence)[0]
            cells = runner.backend.array(runner.state.kv.layers[damaged].v)
            cells[[page]] = np.full((1, *cells.shape[1:]), np.nan, cells.dtype)
        engine.step()
    return pair


def test_prompts_in_the_chunk_form(tiny):
    """A chunk's parts end between layers, at the cut too. The device's layers use tensor cores: near the CPU's bits."""
    tokens = np.random.default_rng(3).integers(0, 300, 150).tolist()
    cpu, split = engines(tiny, 1, prefill=64)
    want, got = logits(cpu, tokens), logits(split, tokens)
    errors = [nrmse(*rows) for rows in zip(got.reshape(150, -1), want.reshape(150, -1), strict=True)]
    assert np.median(errors) < 1e-4
    assert max(errors) < 2e-2  # where an activation's rounding to int8 fell to the other side
    assert got.tobytes() != want.tobytes()  # the device's layers used tensor cores
    whole = engines(tiny, 1, prefill=128)[1]
    assert logits(whole, tokens).tobytes() == got.tobytes()
    assert play(whole) == play(split)


def test_features_of_rows(tiny):
    """Embeddings read what the head reads."""
    vectors = []
    for engine in engines(tiny, 1):
        pooling = Pooling("mean")
        engine.add(list(range(5, 45)), SamplingParams(max_tokens=1), pooling=pooling)
        while engine.has_work:
            engine.step()
        vectors.append(pooling.vector())
    assert vectors[0].tobytes() == vectors[1].tobytes()


# ---- the plan --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Layers of 8 MiB."""
    path = tmp_path_factory.mktemp("dense") / "dense.gguf"
    geometry = replace(
        DENSE, num_layers=6, hidden_size=512, intermediate_size=4096, vocab_size=2048, num_heads=4
    )
    write_dense(path, DenseOptions("F16", replace(geometry, num_kv_heads=4, head_dim=128)), 2)
    return path


def machine(vram, ram=8 * GIB):
    found = hw.machine(2)
    return replace(found, gpus=(hw.Gpu("a card", vram, vram),), ram=ram, others=0)


def placed(dense, vram, offload="auto", ram=8 * GIB):
    options = EngineOptions(
        device="cpu", offload_layers=offload, max_model_len=1024, kv="f16", vram_reserve_mib=8, prefill=0
    )
    return plan_file(dense, options, machine=machine(vram, ram))


def test_what_fits_is_not_divided(dense):
    assert placed(dense, GIB).offloaded == 0


def test_auto_leaves_the_fewest_that_it_must(dense):
    whole = placed(dense, GIB).vram
    each = layer_bytes(open_model(dense), 1)
    for short, want in ((1, 1), (each + 1, 2), (3 * each, 3)):
        found = placed(dense, whole.used + whole.reserve - short)
        assert found.offloaded in (want, want - 1), (short, found.offloaded)
        assert found.vram.free >= 0 and found.ram.part("layers on the CPU") >= found.offloaded * each
        assert any(
            f"{found.offloaded} of 6 layers are computed by the CPU: the plan needs" in n for n in found.notes
        )
        with pytest.raises(MemoryLimitError):
            placed(dense, whole.used + whole.reserve - short, str(found.offloaded - 1))


def test_nothing_that_fits_is_an_error(dense):
    with pytest.raises(MemoryLimitError, match="GiB of VRAM"):
        placed(dense, 9 * MIB)
    with pytest.raises(MemoryLimitError, match="layers on the CPU need"):
        placed(dense, GIB, "5", ram=placed(dense, GIB, "5").ram.used * 10 // 9 - MIB)


def test_numbers_that_make_no_sense(dense, tiny):
    with pytest.raises(
        UsageError, match="--offload-layers is 6; the model has 6 layers, and one at least stays"
    ):
        placed(dense, GIB, "6")
    with pytest.raises(UsageError, match="there is no GPU that layers could leave"):
        Engine.load(tiny, EngineOptions(device="cpu", offload_layers="1"))
    with pytest.raises(UsageError, match="auto or a number"):
        EngineOptions.resolve({"offload_layers": "-1"}, {})
    for name, why in (("qwen3moe", "experts leave the GPU"), ("qwen35", "recurrent state or an indexer")):
        with pytest.raises(UnsupportedError, match=why):
            engines(ALL[name].model_path, 1, max_model_len=128)
