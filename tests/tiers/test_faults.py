"""What goes wrong with disks, workers and memory: a typed error, the state of the last commit, and no hang."""

import gc
import logging
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from rig import NgramOptions, rig

from strata import _native, models
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.request import Status
from strata.errors import FaultError, MemoryLimitError, ModelFileError
from strata.gguf import open_model
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers

SHORT, ERROR, TRUNCATED, HANG = 1, 2, 3, 4
STALL, DIE = 1, 2
PROMPT = 5
SMALL = 400_000  # bytes of experts in RAM: most must be read


def read_on(r, begin, end):
    return np.array([r.step(p) for p in range(begin, end)])


@pytest.fixture(scope="module")
def plain(model_path):
    """Logits after each of 20 tokens that were read one by one."""
    return read_on(rig(model_path), 0, 20)


def survives(r, plain, plant, lift, message):
    """Reads on until the planted fault strikes, lifts it, and reads the same tokens with the right bits."""
    assert (read_on(r, 0, PROMPT) == plain[:PROMPT]).all()
    plant()
    position = PROMPT
    with pytest.raises(FaultError, match=message):
        for position in range(PROMPT, 20):
            r.step(position)
    lift()
    assert (read_on(r, position, 20) == plain[position:]).all()
    return r.counts()


@pytest.mark.parametrize("fault", [ERROR, TRUNCATED])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_read_fails(model_path, plain, fault, threads):
    r = rig(model_path, budget=SMALL, read_threads=threads, lookahead=False)
    native = r.store.native
    reason = "Input/output error" if fault == ERROR else "the file ends"
    message = rf"expert \d+ of expert layer \d cannot be read .*{reason}"
    counts = survives(r, plain, lambda: native.inject(fault, 3), lambda: None, message)
    assert counts["read_errors"] == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_short_reads_go_on(model_path, wanted, threads):
    r = rig(model_path, budget=SMALL, read_threads=threads)
    r.store.native.inject(SHORT, 0)
    assert r.digest() == wanted
    assert r.counts()["reads"] > 2 * r.counts()["ram_misses"]


def test_a_read_ahead_that_fails_is_made_again(model_path, wanted):
    r = rig(model_path, budget=2 * SMALL)
    r.step(0)
    r.runner.pages.free(0)
    r.store.native.inject(ERROR, 0)
    r.store.native.prefetch(1, [e for e in range(16) if not r.store.native.holds(1, e)][:1])
    while not r.counts()["read_errors"]:
        time.sleep(0.001)
    assert r.digest() == wanted


def test_a_hanging_disk(model_path, plain):
    r = rig(model_path, budget=SMALL, wait=2, lookahead=False)
    native = r.store.native
    lift = lambda: native.inject(0, 0)  # noqa: E731  (the pair reads best side by side)
    survives(r, plain, lambda: native.inject(HANG, 2), lift, "did not answer in time")


@pytest.mark.parametrize("fault", [STALL, DIE])
def test_a_worker_that_stalls_or_dies(model_path, plain, fault):
    r = rig(model_path, budget=0, sim={"cpu_share": 0.5, "workers": 2}, wait=2)
    device = r.backend.device
    counts = survives(
        r,
        plain,
        lambda: device.inject_worker(fault, 7),
        lambda: device.inject_worker(0, 0),
        "a worker, a copy or a read that did not answer in time",
    )
    assert counts["void_steps"] == 1
    assert device.workers == (1 if fault == DIE else 2)


def test_steps_go_on_while_a_worker_stalls(model_path, plain):
    """Until the late worker is through, misses go through the link; then the workers take their share again."""
    r = rig(model_path, budget=0, sim={"cpu_share": 1.0, "workers": 1}, wait=2)
    device = r.backend.device
    device.inject_worker(STALL, 0)
    with pytest.raises(FaultError):
        r.step(0)
    before = r.counts()["cpu_experts"]
    assert (read_on(r, 0, 8) == plain[:8]).all()
    assert r.counts()["cpu_experts"] == before
    device.inject_worker(0, 0)
    deadline = time.monotonic() + 60
    while r.counts()["cpu_experts"] == before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (read_on(r, 8, 16) == plain[8:16]).all()
    assert r.counts()["cpu_experts"] > before + 8


def test_a_link_that_stalls(model_path, plain):
    r = rig(model_path, budget=0, sim={"cpu_share": 0.0}, wait=2)
    device = r.backend.device
    survives(r, plain, lambda: device.inject_link(1), lambda: device.inject_link(0), "did not answer in time")


@pytest.mark.parametrize("sim", [None, {"cpu_share": 0.5}])
def test_a_prompt_chunk_that_fails_leaves_nothing_behind(model_path, wanted, sim):
    """A text whose chunk failed is read again from its beginning: what the chunk stored is not seen."""
    r = rig(model_path, budget=SMALL, sim=sim, lookahead=False)
    for after in (2, 17, 40):
        r.store.native.inject(ERROR, after)
        try:
            r.read("chunk", 0, r.tokens[:64], range(0))
        except FaultError:
            pass
        else:
            assert sim is not None, "workers read again what failed to be read ahead"
        r.runner.pages.free(0)
    r.store.native.inject(0, 0)
    assert r.counts()["read_errors"] > 1
    assert r.digest() == wanted


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_request_ends_with_its_fault_and_the_next_is_right(model_path, backend):
    tokens = [int(t) for t in np.load(f"{model_path}.cycle.npy")[:80]]
    sampling = SamplingParams(temperature=0.0, max_tokens=10)

    def generate(engine, fault=None):
        request = engine.add(tokens, sampling)
        if fault is not None:
            engine._loaded.experts.native.inject(ERROR, fault)
        while request.status is not Status.FINISHED:
            engine.step()
        return request

    def load(**options):
        return Engine.load(model_path, EngineOptions(threads=2, device="cpu", max_model_len=128, **options))

    wanted = generate(load()).output_token_ids
    options = {"backend": backend, "ram_budget_gib": SMALL / 2**30, "lookahead": "off", "cpu_share": "0"}
    engine, failed = load(**options), 0
    for fault in (1, 4, 200, 260):
        request = generate(engine, fault)
        if request.error is None:
            assert request.output_token_ids == wanted
            continue
        failed += 1
        assert isinstance(request.error, FaultError)
        assert "cannot be read" in str(request.error)
        engine._loaded.experts.native.inject(0, 0)
        assert generate(engine).output_token_ids == wanted
    assert failed > 1


def test_the_file_is_cut_short_while_it_is_used(model_path, plain, tmp_path):
    """Nothing of a model whose experts are read is touched through the map: no bus error."""
    path = tmp_path / "cut.gguf"
    shutil.copy(model_path, path)
    shutil.copy(f"{model_path}.cycle.npy", f"{path}.cycle.npy")
    r = rig(path, budget=SMALL, ngram=NgramOptions(cache_bytes=1000), lookahead=False)
    assert (read_on(r, 0, PROMPT) == plain[:PROMPT]).all()
    os.truncate(path, 100_000)
    for _ in range(3):
        with pytest.raises(FaultError, match=r"the file ends"):
            read_on(r, PROMPT, 20)
    shutil.copy(model_path, path)
    assert (read_on(r, PROMPT, 20) == plain[PROMPT:]).all()


def test_a_file_that_is_short_at_load(model_path, tmp_path):
    path = tmp_path / "short.gguf"
    shutil.copy(model_path, path)
    shutil.copy(f"{model_path}.cycle.npy", f"{path}.cycle.npy")
    with pytest.raises(ModelFileError, match="cannot be read"):
        rig_of_cut(path)


def rig_of_cut(path):
    file = open_model(path)
    layers = expert_layers(models.load(file))
    os.truncate(path, path.stat().st_size // 2)
    ExpertStore(layers, [file], StoreOptions()).load()


@pytest.fixture
def memory_limits():
    yield _native.limit_tier_memory
    _native.limit_tier_memory(2**64 - 1, 2**64 - 1)


def test_memory_is_refused(model_path, memory_limits):
    memory_limits(100_000, 0)
    with pytest.raises(MemoryLimitError, match=r"refuses .* GiB for experts in RAM; lower --ram-budget-gib"):
        rig(model_path, budget=SMALL)


def test_a_budget_too_small(model_path):
    with pytest.raises(MemoryLimitError, match=r"--ram-budget-gib is .* need at least \d+ bytes"):
        rig(model_path, budget=1000)


def test_the_lock_limit_leaves_a_subset(model_path, wanted, memory_limits, caplog):
    memory_limits(2**64 - 1, 65536)
    with caplog.at_level(logging.WARNING, logger="strata"):
        r = rig(model_path, budget=0, lock=True, sim={"cpu_share": 0.5})
    assert r.store.native.locked <= 65536
    lines = [m for m in caplog.messages if "page-locked" in m]
    assert len(lines) == 1
    assert "ulimit -l" in lines[0]
    assert r.digest() == wanted


def entries(directory):
    return sum(1 for _ in Path(directory).iterdir())


def test_nothing_leaks(model_path):
    """Stores, devices and their threads end with what made them, also after a fault."""
    fds, threads = entries("/proc/self/fd"), entries("/proc/self/task")
    for _ in range(3):
        sim = {"cpu_share": 0.0}
        r = rig(model_path, budget=SMALL, sim=sim, ngram=NgramOptions(), wait=2, lookahead=False)
        r.store.native.inject(ERROR, 5)
        with pytest.raises(FaultError):
            read_on(r, 0, 20)
        del r
    gc.collect()  # tracebacks and frames hold each other
    assert entries("/proc/self/fd") <= fds + 2
    assert entries("/proc/self/task") <= threads
