"""The swap protocol's state machine, the miss split, and the header for both compilers."""

import subprocess
import time
from pathlib import Path

import pytest
from rig import rig

from strata import _native

FREE, ARRIVING, RESIDENT, LEAVING = range(4)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def r(model_path):
    return rig(model_path, budget=0, sim={"cpu_share": 0.0}, resident=0.1)


def states(device):
    return [state for _, state, _, _ in device.slots()]


def arrive(device):
    while device.moving:
        time.sleep(0.001)


def test_a_slot_goes_round(r):
    device = r.backend.device
    r.step(0)
    _, state, layer, expert = device.slots()[0]
    assert (state, device.slot_of(layer, expert)) == (RESIDENT, 0)
    assert not device.promote(layer, 15, 0), "the slot is not free"
    assert device.retire(layer, expert)
    assert not device.retire(layer, expert), "it is leaving already"
    assert states(device)[0] == RESIDENT, "nothing changes before the next step begins"
    r.step(0)
    assert device.slot_of(layer, expert) == -1
    r.step(0)
    assert states(device)[0] == FREE
    assert device.promote(layer, 15, 0)
    assert not device.promote(layer, 15, 1), "it is on its way"
    arrive(device)
    assert (states(device)[0], device.slot_of(layer, 15)) == (ARRIVING, -1)
    r.step(0)
    assert (states(device)[0], device.slot_of(layer, 15)) == (RESIDENT, 0)


def test_an_arrival_can_be_called_off(r):
    device = r.backend.device
    r.step(0)
    _, _, layer, expert = device.slots()[0]
    device.retire(layer, expert)
    r.step(0)
    r.step(0)
    device.inject_link(1)
    assert device.promote(layer, 14, 0)
    assert device.retire(layer, 14)
    assert not device.retire(layer, 14)
    device.inject_link(0)
    arrive(device)
    deadline = time.monotonic() + 60
    while states(device)[0] != FREE and time.monotonic() < deadline:
        time.sleep(0.001)
    assert states(device)[0] == FREE
    assert device.promote(layer, 14, 0)
    arrive(device)
    assert device.retire(layer, 14), "it has come and is not yet published"
    r.step(0)
    assert (states(device)[0], device.slot_of(layer, 14)) == (FREE, -1)


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (99, 0, 0), (0, 99, 0), (0, 0, 9999)])
def test_wrong_names_change_nothing(r, wrong):
    device = r.backend.device
    before = device.slots()
    assert not device.promote(*wrong)
    assert device.slots() == before
    assert not device.retire(*wrong[:2]) or wrong[:2] == (0, 0)


def test_a_slot_must_hold_the_expert(model_path):
    r = rig(model_path, budget=0, sim={"cpu_share": 0.0, "staging": 2}, resident=0.05)
    device = r.backend.device
    sizes = r.store.tiers.blob_bytes
    assert all(size >= max(sizes) for size, *_ in device.slots())


COSTS = [20.0, 40.0, 0.0, 1.0, 0.0]  # nanoseconds: link, CPU, CPU a row, RAM, each a byte; a post


@pytest.mark.parametrize(
    ("misses", "costs", "copies"),
    [
        (0, COSTS, 0),
        (1, COSTS, 1),
        (3, COSTS, 2),
        (9, COSTS, 6),
        (9, [20.0, 4000.0, 0.0, 1.0, 0.0], 9),
        (9, [20.0, 1.0, 0.0, 1.0, 0.0], 0),
        (9, [20.0, 40.0, 0.0, 1.0, 1e9], 9),
        (9, [20.0, 40.0, 40.0, 1.0, 0.0], 8),
        (9, [20.0, 40.0, 0.0, 300.0, 0.0], 9),  # RAM bounds every split: ties copy
    ],
)
def test_the_split_follows_costs(misses, costs, copies):
    assert _native.split_misses(misses, 1000, 1.0, costs) == copies


def test_the_split_is_never_worse_than_copying_all():
    def cost(copied, misses, c, rows):
        computed = misses - copied
        cpu = c[4] + computed * 1000 * (c[1] + rows * c[2]) if computed else 0
        return max(copied * 1000 * c[0], cpu, misses * 1000 * c[3])

    for link in (1.0, 7.0, 30.0):
        for cpu in (0.5, 9.0, 80.0):
            for misses in range(1, 30):
                costs = [link, cpu, cpu / 3, 0.7, 500.0]
                best = _native.split_misses(misses, 1000, 2.0, costs)
                assert cost(best, misses, costs, 2) <= cost(misses, misses, costs, 2) * (1 + 1e-6)
                assert cost(best, misses, costs, 2) <= min(
                    cost(n, misses, costs, 2) for n in range(misses + 1)
                ) * (1 + 1e-6)


def test_the_guard_drops_a_split_that_is_slower(model_path, wanted):
    """Costs that lie: the CPU is said to be free and its workers are few, the link is as fast as memory."""
    r = rig(model_path, budget=0, sim={"cpu_share": -1.0, "workers": 1, "link_rate": 0.0})
    r.backend.device.set_costs([1000.0, 0.0, 0.0, 0.0, 0.0])
    for _ in range(70):
        r.step(0)
    split, copied, _, split_ns, copy_ns = r.backend.device.split_report()
    assert split > 0
    assert copied > 0, "a step in 64 copies everything, to be compared"
    assert split_ns > 0
    assert copy_ns > 0
    assert r.digest() == wanted


def test_the_header_stands_alone(tmp_path):
    """A C++ compiler takes the protocol by itself; no part of the engine is behind it."""
    source = tmp_path / "alone.cpp"
    source.write_text(
        '#include "strata/tiers.h"\nint main() { strata::tiers::MailboxView view;\n'
        "  return strata::tiers::mailbox_view(0, {32, 10, 2560, 320}, &view) % 64; }\n"
    )
    program = tmp_path / "alone"
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'native/include'}"]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    subprocess.run([str(program)], check=True)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_the_header_compiles_for_gpus(arch, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra (cuda-bindings) is not installed")
    from benchmarks.contract import harness  # noqa: PLC0415  (it needs the cuda extra)

    monkeypatch.setattr(harness, "CACHE", tmp_path)
    source = """#include "strata/tiers.h"
    using namespace strata::tiers;
    extern "C" __global__ void post(uint64_t base, uint32_t* fault, const uint32_t* table, int32_t* out, MissCosts c) {
      MailboxView view;
      mailbox_view(base, {32, 10, 2560, 320}, &view);
      store_release(&view.head->posted, 7);
      if (!wait_for(&view.head->served, 7, 50000000, fault)) raise(fault, kWaitExpired);
      out[0] = entry_slot(table[threadIdx.x]);
      out[1] = split_misses(out[0], 1000, 1.0f, c);
      NgramView rows;
      out[2] = static_cast<int32_t>(ngram_view(base, 160, 90, &rows));
    }"""
    try:
        assert harness.compile_cubin(source, arch)[:4] == b"\x7fELF"
    except harness.NoCompiler as missing:
        pytest.skip(str(missing))
