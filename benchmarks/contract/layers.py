"""48 layers of 512 routed experts in one CUDA graph: hits, copied misses and misses on CPU workers, one row.

Usage: python -m benchmarks.contract.layers [--out FILE.json]
"""

import argparse
import ctypes
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.contract import harness
from benchmarks.contract.cpu import Cpu, arithmetic, build, pointer

LAYERS, EXPERTS, TOP, HIDDEN, WIDTH = 48, 512, 10, 2560, 640
GATE_BYTES, DOWN_BYTES = WIDTH * HIDDEN // 256 * 98, HIDDEN * WIDTH // 64 * 18
EXPERT_BYTES = 2 * GATE_BYTES + DOWN_BYTES
CONTENTS, SLOTS = 256, 2048  # distinct experts in RAM, expert slots in device memory (3.5 GB)
MISS_RANKS = (3, 0, 7, 9)
SOURCE = '#include "layer_kernels.cuh"\n'


def expert_pool(contents: int) -> np.ndarray:
    """[contents, EXPERT_BYTES] of random packed experts with sane scales."""
    rng = np.random.default_rng(5)
    pool = rng.integers(0, 256, (contents, EXPERT_BYTES), np.uint8)

    def scales(begin: int, count: int, top: float) -> None:
        values = (rng.uniform(0.5, 2.0, (contents, count)) * top).astype(np.float16)
        pool[:, begin : begin + 2 * count] = values.view(np.uint8)

    blocks = WIDTH * HIDDEN // 32
    for gate in (0, GATE_BYTES):
        scales(gate + blocks * 12, blocks // 8, 2.0**-11)
    scales(2 * GATE_BYTES + blocks * 8, blocks // 2, 2.0**-8)
    return pool


class Layers:
    """Device state of the experiment and its graphs."""

    def __init__(self, gpu: harness.Gpu, contents: int = CONTENTS, slots: int = SLOTS) -> None:
        self.gpu, self.contents, self.slots = gpu, contents, slots
        self.workers = build("workers.cpp")
        self.workers.workers_start.restype = ctypes.c_void_p
        self.box_bytes = self.workers.workers_mailbox_bytes()
        module = gpu.load(harness.compile_cubin(SOURCE, gpu.arch))
        names = ("layer_router", "layer_gate_up", "layer_down", "step_begin", "empty_node")
        self.kernel = {n: gpu.kernel(module, n) for n in names}
        self._experts()
        self._buffers()

    def _experts(self) -> None:
        self.ram = harness.HostBuffer(self.contents * EXPERT_BYTES)
        self.ram.array[:] = expert_pool(self.contents).reshape(-1)
        self.vram = harness.Buffer(self.slots * EXPERT_BYTES)
        for i in range(0, self.slots, self.contents):
            self.vram.put(self.ram.array, i * EXPERT_BYTES)
        index = np.arange(LAYERS * EXPERTS, dtype=np.uint64).reshape(LAYERS, EXPERTS)
        self.slot_of = (index * 7919 % self.slots).astype(np.int32)
        content = self.slot_of.astype(np.uint64) % self.contents
        self.sources = np.ascontiguousarray(self.ram.pointer + content * EXPERT_BYTES)
        self.slots_d = harness.Buffer(self.slots * 8).put(
            self.vram.pointer + np.arange(self.slots, dtype=np.uint64) * EXPERT_BYTES
        )
        self.sources_d = harness.Buffer(self.sources.nbytes).put(self.sources)
        self.residency_d = harness.Buffer(self.slot_of.nbytes).put(self.slot_of)
        self.ring = harness.Buffer(2 * TOP * EXPERT_BYTES)
        ring = self.ring.pointer + np.arange(2 * TOP, dtype=np.uint64) * EXPERT_BYTES
        self.staging_d = harness.Buffer(2 * TOP * 8).put(ring)

    def _buffers(self) -> None:
        rng = np.random.default_rng(6)
        self.router = (rng.standard_normal((LAYERS, EXPERTS, HIDDEN), np.float32) * np.float32(0.03)).astype(
            np.float32
        )
        self.router_d = harness.Buffer(self.router.nbytes).put(self.router)
        self.start = rng.standard_normal(HIDDEN).astype(np.float32)
        flags = LAYERS * TOP * 4
        sizes = {"x": HIDDEN * 4, "logits": EXPERTS * 4, "q": HIDDEN, "d": HIDDEN // 8, "s": HIDDEN // 8}
        sizes |= {"plan": TOP * 40, "ids": flags, "h": TOP * WIDTH * 4, "rows": TOP * HIDDEN * 4}
        sizes |= {
            "step": 16,
            "fault": 16,
            "arrived": flags,
            "ready": flags,
            "count": 16,
            "parts": HIDDEN // 16,
        }
        self.b = {k: harness.Buffer(v) for k, v in sizes.items()}
        self.b["start"] = harness.Buffer(HIDDEN * 4).put(self.start)
        self.boxes = harness.HostBuffer(LAYERS * self.box_bytes)
        self.clear()

    def clear(self) -> None:
        """Step 0: no mailbox posted, no copy arrived."""
        self.gpu.sync()
        for k in ("step", "arrived", "ready", "fault", "count", "parts"):
            self.b[k].fill(0)
        self.boxes.array[:] = 0

    def at(self, buffer: Any, offset: int) -> np.uint64:
        return np.uint64(buffer.pointer + offset)

    def layer(self, i: int, to_cpu: int, copies: int, dependent: bool, only: str = "") -> None:
        b, box = self.b, self.at(self.boxes, i * self.box_bytes)
        flags = i * TOP * 4

        def launch(name: str, grid: int, threads: int, *args: Any) -> None:
            if only in name:
                self.gpu.launch(self.kernel[name], (grid,), threads, args, dependent=dependent)

        tables = (self.at(self.residency_d, i * EXPERTS * 4), self.slots_d, self.at(self.sources_d, i * EXPERTS * 8),
                  self.at(self.staging_d, i % 2 * TOP * 8))  # fmt: skip
        launch(
            "layer_router",
            EXPERTS // 8 + HIDDEN // 256,
            256,
            b["x"],
            self.at(self.router_d, i * EXPERTS * HIDDEN * 4),
            b["logits"],
            b["count"],
            b["q"],
            b["d"],
            b["s"],
            *tables,
            to_cpu,
            b["step"],
            box,
            b["plan"],
            self.at(b["ids"], flags),
        )
        launch(
            "layer_gate_up",
            copies + TOP * (WIDTH // 16),
            256,
            b["plan"],
            copies,
            b["q"],
            b["d"],
            b["s"],
            self.at(b["arrived"], flags),
            self.at(b["ready"], flags),
            b["step"],
            b["fault"],
            b["h"],
        )
        launch(
            "layer_down",
            TOP * (HIDDEN // 64),
            256,
            b["plan"],
            b["h"],
            box,
            b["step"],
            b["fault"],
            b["parts"],
            b["rows"],
            b["x"],
        )

    def graph(
        self, layers: int = LAYERS, to_cpu: int = 0, copies: int = 8, dependent: bool = True, only: str = ""
    ) -> Any:
        def body() -> None:
            self.gpu.launch(
                self.kernel["step_begin"],
                (HIDDEN // 256,),
                256,
                (self.b["start"], self.b["x"], self.b["step"], self.b["fault"]),
            )
            for i in range(layers):
                self.layer(i, to_cpu, copies, dependent, only)

        return self.gpu.capture(body)

    def run(self, graph: Any) -> tuple[np.ndarray, int]:
        """(x after the last layer, fault) of one replay."""
        self.gpu.replay(graph)
        self.gpu.sync()
        return self.b["x"].get((HIDDEN,), np.float32), int(self.b["fault"].get((1,), np.uint32)[0])

    def set_misses(self, ids: np.ndarray, count: int) -> None:
        """Takes `count` of each layer's chosen experts out of device memory."""
        table = self.slot_of.copy()
        for i in range(LAYERS):
            table[i, ids[i, list(MISS_RANKS[:count])]] = -1
        self.residency_d.put(table)

    def start_workers(self, threads: int) -> int:
        layers = np.arange(LAYERS, dtype=np.int32)
        self._keep = layers
        start = self.workers.workers_start
        return start(
            ctypes.c_void_p(self.boxes.pointer),
            pointer(layers),
            LAYERS,
            pointer(self.sources),
            LAYERS,
            threads,
        )

    def stop_workers(self, handle: int) -> None:
        self.workers.workers_stop(ctypes.c_void_p(handle))


def first_layer(layers: Layers, cpu: Cpu) -> np.ndarray:
    """x after layer 0 by the CPU's forms of the contract alone."""
    a, x = arithmetic(), layers.start
    u = x * (np.float32(1) / np.sqrt(a.lane_dot(x, x) / np.float32(HIDDEN) + np.float32(1e-6)))
    lanes = np.zeros((EXPERTS, 32), np.float32)
    for i in range(0, HIDDEN, 32):
        lanes = _fma(layers.router[0][:, i : i + 32], u[i : i + 32], lanes)
    logits = _tree(lanes)
    ids = np.argsort(-logits, kind="stable")[:TOP]
    e = cpu.map(0, np.ascontiguousarray(logits[ids] - logits[ids[0]]))
    weights = e / _tree(np.pad(e, (0, 22))[None])[0]
    out = np.zeros(HIDDEN, np.float32)
    x8 = cpu.quantize(u[None])
    for i, w in zip(ids, weights, strict=True):
        at = int(layers.slot_of[0, i]) % layers.contents * EXPERT_BYTES
        blob = layers.ram.array[at : at + EXPERT_BYTES]
        gate, up = (cpu.product("packed", "IQ3_XXS", blob[o:], WIDTH, x8)[0] for o in (0, GATE_BYTES))
        h = cpu.map(3, gate) * up
        row = cpu.product("packed", "Q2_0", blob[2 * GATE_BYTES :], HIDDEN, cpu.quantize(h[None]))[0]
        out = _fma(np.full(HIDDEN, w, np.float32), row, out)
    return x + out


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return arithmetic().fma(*np.broadcast_arrays(a, b, c))


def _tree(lanes: np.ndarray) -> np.ndarray:
    for half in (16, 8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


def timed(layers: Layers, graph: Any, repeats: int = 15) -> float:
    return statistics.median(layers.gpu.time(lambda: layers.gpu.replay(graph), repeats, 3))


def node_costs(layers: Layers) -> dict[str, float]:
    """Microseconds of a graph node that does nothing, one block, with and without dependent launch."""
    found = {}
    for dependent in (False, True):

        def body(dependent: bool = dependent) -> None:
            for _ in range(240):
                layers.gpu.launch(
                    layers.kernel["empty_node"], (1,), 32, (layers.b["x"],), dependent=dependent
                )

        graph = layers.gpu.capture(body)
        found["dependent" if dependent else "plain"] = timed(layers, graph) / 240
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    args = parser.parse_args()
    gpu, cpu = harness.Gpu(), Cpu()
    begin = time.time()
    layers = Layers(gpu)
    print(f"set up in {time.time() - begin:.1f} s", flush=True)
    report: dict[str, Any] = {"node_us": node_costs(layers), "step_us": {}, "equal": {}}
    print("node us", report["node_us"], flush=True)
    one, fault = layers.run(layers.graph(1))
    expected = first_layer(layers, cpu)
    report["equal"]["layer 0 = CPU"] = (
        bool((one.view(np.int32) == expected.view(np.int32)).all()) and fault == 0
    )
    print(
        "layer 0 equals the CPU's:",
        report["equal"]["layer 0 = CPU"],
        "max",
        float(np.abs(one).max()),
        flush=True,
    )
    base, fault = layers.run(layers.graph())
    ids = layers.b["ids"].get((LAYERS, TOP), np.int32)
    print(
        "48 layers, all resident: fault",
        fault,
        "finite",
        bool(np.isfinite(base).all()),
        "rms",
        float(np.sqrt((base**2).mean())),
        "distinct experts",
        len(set(map(int, ids.reshape(-1)))),
        flush=True,
    )

    def record(label: str, graph: Any) -> None:
        x, fault = layers.run(graph)
        us = timed(layers, graph)
        last = layers.b["x"].get((HIDDEN,), np.float32)
        equal = fault == 0 and all(bool((v.view(np.int32) == base.view(np.int32)).all()) for v in (x, last))
        report["step_us"][label], report["equal"][label] = us, equal
        print(f"{label:36} {us:9.1f} us a step, {us / LAYERS:7.2f} a layer, equal {equal}", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(report))

    for only in ("router", "gate_up", "down"):
        us = timed(layers, layers.graph(only=only)) / LAYERS
        report["node_us"][only] = us
        print(f"48 x {only}: {us:.2f} us each", flush=True)
    base_again, _ = layers.run(layers.graph())
    assert (base_again.view(np.int32) == base.view(np.int32)).all()
    record("resident, plain nodes", layers.graph(dependent=False))
    record("resident, dependent launch", layers.graph())
    for misses in (1, 4):
        layers.set_misses(ids, misses)
        for copies in (4, 8, 16, 32):
            record(f"{misses} misses copied, {copies} blocks", layers.graph(copies=copies))
        record(f"{misses} misses copied, 16 blocks, plain nodes", layers.graph(copies=16, dependent=False))
        for threads in (2, 5, 10, 14):
            layers.clear()
            handle = layers.start_workers(threads)
            record(f"{misses} misses on CPU, {threads} threads", layers.graph(to_cpu=TOP))
            if misses > 1:
                for share in (1, 2, 3):
                    record(
                        f"{misses} misses, {share} on CPU, {threads} threads",
                        layers.graph(to_cpu=share, copies=16),
                    )
            layers.stop_workers(handle)
    layers.clear()
    begin = time.time()
    _, fault = layers.run(layers.graph(to_cpu=TOP))
    report["equal"]["fault without workers"] = fault == 1
    print(f"no workers: fault {fault} after {1e3 * (time.time() - begin):.0f} ms", flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
