"""The residency policy: against LRU on committed traces, on mixed sizes, beside a running device, and across runs."""

import errno
import time
from pathlib import Path

import numpy as np
import pytest

from strata import _native
from strata.bench.cache import Reuses, clairvoyant, lru, measure_caches, ours
from strata.engine.residency import ResidencyPolicy
from strata.errors import ModelFileError
from strata.memory.learned_set import LearnedSet
from strata.memory.route_trace import RouteHeader, RouteTrace, RouteWriter

TRACES = Path(__file__).resolve().parents[2] / "benchmarks" / "traces"


def trace_of(path, experts, header=None):
    writer = RouteWriter(path, header or RouteHeader(64, experts.shape[2], (100,) * experts.shape[1]))
    for i in range(0, len(experts), 100):
        writer.write(experts[i : i + 100], chunk=True)
    writer.close()
    return RouteTrace.read(path)


def skewed(rows=1500, layers=2, k=4, experts=64, seed=3):
    """A few experts often, the others now and then."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.arange(experts)) ** 1.1
    draws = [rng.choice(experts, k, False, p / p.sum()) for _ in range(rows * layers)]
    return np.array(draws).reshape(rows, layers, k)


@pytest.mark.parametrize("name", ["planted", "strata-mini"])
def test_committed_traces(name):
    """What is asked of the policy, at every size."""
    trace = RouteTrace.read(TRACES / f"{name}.routes")
    reports = {r.share: r for r in measure_caches(trace, (0.125, 0.25, 0.35, 0.52), 1)}
    for share, r in reports.items():
        assert r.ours.hits >= r.lru.hits, share
        assert r.ours.moved_bytes <= 1.1 * r.lru.moved_bytes, share
        assert r.lfu.hits < r.lru.hits <= r.clairvoyant.hits and r.gap_closed < 1
    assert reports[0.125].ours.hit_rate >= reports[0.125].lru.hit_rate + 0.03


def test_frequency_beats_recency_where_it_should(tmp_path):
    uses = Reuses(trace_of(tmp_path / "t", skewed()), 1)
    budget = sum(uses.nbytes) // 8
    slots = [100] * (budget // 100)
    assert ours(uses, slots, 0).hits > 1.1 * lru(uses, budget).hits
    assert ours(uses, slots, 0).hits < clairvoyant(uses, budget).hits


def test_the_clairvoyant_is_belady(tmp_path):
    """Two places, experts 0 1 2 0 1 2 ...: LRU never hits; the best keeps two of them and leaves the third out."""
    uses = Reuses(trace_of(tmp_path / "t", np.array([0, 1, 2] * 30).reshape(-1, 1, 1)), 1)
    assert lru(uses, 200).hits == 0
    assert clairvoyant(uses, 200).hits == 2 * 29


def test_a_quota_is_kept(tmp_path):
    uses = Reuses(trace_of(tmp_path / "t", skewed()), 1)
    replay = _native.PolicyReplay(uses.nbytes, [100] * 16, 300, 0.0)
    moved = [replay.step(step)[3] for step in uses.steps]
    assert max(moved) == 300
    free = _native.PolicyReplay(uses.nbytes, [100] * 16, 0, 0.0)
    assert max(free.step(step)[3] for step in uses.steps) > 300


def test_slots_of_mixed_sizes(tmp_path):
    """Large experts never sit in small slots, small ones may sit in large slots."""
    header = RouteHeader(64, 4, (100, 300))
    uses = Reuses(trace_of(tmp_path / "t", skewed(), header), 1)
    small = _native.PolicyReplay(uses.nbytes, [100] * 20, 0, 0.0)
    hits = [small.step(step) for step in uses.steps]
    assert sum(h[0] for h in hits) * 100 == sum(h[1] for h in hits) > 0
    both = [_native.PolicyReplay(uses.nbytes, [300] * 20, 0, 0.0).step(step) for step in uses.steps[:1]]
    assert both[0][2] == 8
    mixed = ours(uses, [300] * 6 + [100] * 12, 0)
    assert mixed.hits > sum(h[0] for h in hits)


@pytest.mark.parametrize("fault", ["cut", "head", "expert", "body"])
def test_damaged_traces_are_refused(tmp_path, fault):
    path = tmp_path / "t"
    trace_of(path, skewed(100))
    data = bytearray(path.read_bytes())
    if fault == "cut":
        data = data[:-3]
    elif fault == "head":
        data[3] ^= 1
    elif fault == "expert":
        data = data.replace(b'"num_experts": 64', b'"num_experts": 16')
    else:
        data[-20] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        RouteTrace.read(path)


def test_a_trace_comes_back_as_it_was(tmp_path):
    experts = skewed(230)
    found = trace_of(tmp_path / "t", experts)
    assert [len(f.experts) for f in found.frames] == [100, 100, 30]
    assert np.array_equal(np.concatenate([f.experts for f in found.frames]), np.sort(experts, axis=2))


STATE = ([-1, 3, 1], [0.0, 1.0, 2.5], [0.5] * 192, [1.0] * 192)


def test_what_was_learned_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, caplog):
    kept = LearnedSet(tmp_path / "deep" / "set.npz")
    assert kept.load() is None
    assert kept.save(STATE)
    assert kept.load() == STATE
    before = kept.path.read_bytes()

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with caplog.at_level("WARNING", logger="strata"):
        assert not kept.save(([5], [1.0], [], []))
    assert "No space left" in caplog.text
    assert kept.path.read_bytes() == before and list(kept.path.parent.iterdir()) == [kept.path]
    kept.path.write_bytes(before[: len(before) // 2])
    assert kept.load() is None


class Device:
    """The policy's thread needs a real device; this is the part of a backend that it asks."""

    def __init__(self, rig):
        self.device, self.num_experts, self.fill = rig.backend.device, 16, rig.backend.fill


@pytest.fixture(scope="module")
def planted_rig(tmp_path_factory):
    from tiers import rig as rigs  # noqa: PLC0415

    path = rigs.write_model(tmp_path_factory.mktemp("rig") / "model.gguf")
    return lambda: rigs.rig(path, budget=0, sim={}, resident=0.25)


def test_a_running_policy_changes_places_and_no_bit(planted_rig, tmp_path):
    still = planted_rig().digest()
    rig = planted_rig()
    held = {(layer, e) for _, _, layer, e in rig.backend.device.slots()}
    kept = LearnedSet(tmp_path / "set.npz")
    policy = ResidencyPolicy(Device(rig), kept, 0.0)
    try:
        for _ in range(3):
            assert rig.digest(rows=(1, 1, 3)) == planted_rig().digest(rows=(1, 1, 3))
        end = time.monotonic() + 60
        while policy.steps < 20 and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        policy.close()
    assert rig.digest() == still
    assert policy.steps >= 20
    after = {(layer, e) for _, _, layer, e in rig.backend.device.slots()}
    assert after != held, "nothing was promoted"
    again = planted_rig()
    second = ResidencyPolicy(Device(again), kept, 0.0)
    second.close()
    assert kept.load() is not None


def test_what_another_model_learned_is_left_aside(planted_rig, tmp_path, caplog):
    kept = LearnedSet(tmp_path / "set.npz")
    kept.save(STATE)
    with caplog.at_level("WARNING", logger="strata"):
        ResidencyPolicy(Device(planted_rig()), kept, 0.0).close()
    assert "left aside" in caplog.text
