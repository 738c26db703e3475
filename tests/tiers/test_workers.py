"""CPU workers against a device that posts its next list as soon as it has seen every item of the last one, as a GPU."""

import time

import numpy as np
import pytest
from gpu_rig import write_model

from strata import _native, models
from strata.backends.cpu.lower import Addresses, lower
from strata.gguf import open_model
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers
from strata.ops import Buffer, Builder, StepBuffers, group_by_expert, routed_experts
from strata.ops.experts import ExpertDown, ExpertGateUp

LAG = 3
ROWS, K, EXPERTS, HIDDEN, INNER = 4, 4, 16, 256, 256
LAYERS = 4


class Box:
    """The device's view of a mailbox (`mailbox_view` of strata/tiers.h)."""

    def __init__(self, memory, end):
        sizes = (192, EXPERTS * 16, EXPERTS * 4, ROWS * K * 4, ROWS * HIDDEN * 4, ROWS * HIDDEN)
        sizes += (ROWS * HIDDEN // 8, ROWS * HIDDEN // 8, ROWS * K * HIDDEN * 4)
        at = end - sum(-(-n // 64) * 64 for n in sizes)
        parts = []
        for n in sizes:
            parts.append(memory[at : at + n])
            at += -(-n // 64) * 64
        self.head, self.items, self.served = (p.view(np.int32) for p in parts[:3])
        self.pairs, self.codes = parts[3].view(np.int32), parts[5].view(np.int8)
        self.scales, self.sums = parts[6].view(np.float32), parts[7].view(np.int16)
        self.out = parts[8].view(np.float32).reshape(ROWS * K, HIDDEN)
        self.posts = 0

    def post(self, layer, experts):
        """Every expert for one row's pair; waits until every item is served."""
        for i, expert in enumerate(experts):
            self.items[4 * i : 4 * i + 3] = expert, i, 1
            self.pairs[i] = i
        self.head[1:4] = layer, ROWS, len(experts)
        self.posts += 1
        self.head[0] = self.posts
        end = time.monotonic() + 60
        while (self.served[: len(experts)] != self.posts).any():
            assert time.monotonic() < end, "the workers do not answer"
        return self.out[: len(experts)].copy()


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("workers") / "planted.gguf")
    file = open_model(path)
    layers = expert_layers(models.load(file))
    store = ExpertStore(layers, [file], StoreOptions())
    store.load()
    nbytes = _native.gpu_tier_sizes(ROWS, K, HIDDEN, EXPERTS)[0]
    memory = np.zeros(nbytes + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][:nbytes]
    faults = np.zeros(32, np.uint32)
    device = _native.GpuDevice(
        store.native, [], ROWS, K, HIDDEN, INNER, EXPERTS, 6, 10**10, memory.ctypes.data, faults.ctypes.data
    )
    for i, layer in enumerate(layers):
        device.set_layer(i, *(lower(op, somewhere())[:3] for op in ops(layer)))
    device.started()
    made = Box(memory, nbytes)
    random = np.random.default_rng(3)
    made.codes[:] = random.integers(-127, 128, made.codes.size)
    made.scales[:] = 0.01
    made.sums[:] = made.codes.reshape(-1, 16).astype(np.int16).sum(1)
    made.kept = device, store, memory, faults
    return made


def somewhere():
    return Addresses(lambda _: 64, lambda _: (64, 64, 64), lambda w: w.data.ctypes.data, lambda _: 64)


def ops(layer):
    steps = StepBuffers.create(ROWS, 1, 64, ROWS)
    b = Builder(steps, ROWS)
    x = Buffer("x", (ROWS, HIDDEN), "f32", "input", live=steps.num_rows)
    ids = Buffer("ids", (ROWS, K), "i32", "input", live=steps.num_rows)
    routed_experts(b, x, group_by_expert(b, ids, EXPERTS), layer)
    found = b.finish().ops
    return [next(op for op in found if isinstance(op, kind)) for kind in (ExpertGateUp, ExpertDown)]


def test_lists_that_follow_at_once(box):
    """Threads that are held up meet a list that is long over: they must not begin it again."""
    wanted = {}
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            time.sleep(0.001)
            wanted[layer, expert] = box.post(layer, [expert])[0]
    assert len({w.tobytes() for w in wanted.values()}) == len(wanted)
    device, random = box.kept[0], np.random.default_rng(5)
    device.inject_worker(LAG, 0)
    for _ in range(1000):
        layer, count = int(random.integers(LAYERS)), int(random.integers(1, 4))
        experts = random.permutation(EXPERTS)[:count].tolist()
        rows = box.post(layer, experts)
        assert (rows[0] == wanted[layer, experts[0]]).all()
    device.inject_worker(0, 0)
    assert box.head[16] == box.posts, "the last list is told as served"
    assert not box.kept[3].any()


def test_what_lists_take_is_what_the_device_reckons_with(box):
    """Costs far too low or high are corrected by what lists take; and grow low again while nothing is posted."""
    device, memory = box.kept[0], box.kept[2]
    told = memory.view(np.float32)

    def after(cost, lists=20):
        device.set_costs([1.25, cost, cost, 0.5, 7.0])
        at = int(np.flatnonzero((told[:-1] == 1.25) & (told[1:] == np.float32(cost)))[0])
        for _ in range(lists):
            box.post(0, [0, 1])
        assert tuple(told[[at, at + 3, at + 4]]) == (1.25, 0.5, 7.0)
        assert told[at + 1] == told[at + 2]
        return float(told[at + 1]), at

    low, at = after(1e-6)
    assert low > 2e-6
    for _ in range(1000):
        device.started()
    assert 1e-6 <= told[at + 1] < 0.5 * low
    assert 0.4e6 < after(1e6)[0] < 0.8e6
    device.set_costs([0.0] * 5)


def test_nothing_is_told_after_the_end(box):
    """The memory that a device was given may be somebody else's by then. The last test of the box."""
    device, memory = box.kept[0], box.kept[2]
    device.set_costs([1.0, 1e-6, 1e-6, 1.0, 1.0])
    for _ in range(20):
        box.post(0, [0, 1])
    device.close()
    memory[:] = 0
    device.close()
    assert not memory.any()
