"""Step forms on the GPU against the same text on the CPU, bit for bit.

Usage: python -m benchmarks.contract.steps
"""

from typing import Any

import numpy as np
from benchmarks.contract import harness
from benchmarks.contract.cpu import Cpu, arithmetic

SOURCE = '#include "step_kernels.cuh"\n'
FUNCTIONS = ("exp32", "log32", "sigmoid32", "silu32", "softplus32")
Array = np.ndarray


def attention(q: Array, k: Array, v: Array, scale: np.float32) -> Array:
    """One row's heads [heads, dim] over cells [cells, dim] in the contract's step form."""
    a = arithmetic()
    parts = []
    for begin in range(0, len(k), 256):
        keys, values = k[begin : begin + 256], v[begin : begin + 256]
        score = a.lane_dot(q[:, None], keys[None]) * scale
        m = score.max(-1)
        p = a.exp32(score - m[:, None])
        o = np.stack([a.lane_dot(row[None], np.ascontiguousarray(values.T)) for row in p])
        parts.append((m, a.lane_sum(p), o))
    most = np.max([m for m, _, _ in parts], axis=0)
    total, out = np.zeros(len(q), np.float32), np.zeros_like(q)
    for m, part_sum, o in parts:
        weight = a.exp32(m - most)
        total = a.fma(part_sum, weight, total)
        out = a.fma(o, weight[:, None], out)
    return out / total[:, None]


def delta(state: Array, k: Array, q: Array, v: Array, decay: Array, beta: Array) -> tuple[Array, Array]:
    """(output [heads, 128], new state [heads, v, k]) of one delta-rule step."""
    a = arithmetic()
    state = decay[:, None, None] * state
    d = beta[:, None] * (v - a.lane_dot(state, k[:, None]))
    state = a.fma(*np.broadcast_arrays(k[:, None], d[..., None], state))
    return a.lane_dot(state, q[:, None]), state


def topk(logits: Array, k: int, renormalise: bool) -> tuple[Array, Array]:
    """(ids, weights) [rows, k]: ties to the lower index."""
    a = arithmetic()
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    top = np.take_along_axis(logits, ids, -1)
    e = a.exp32(top - top[:, :1])
    return ids, e / a.lane_sum(e if renormalise else a.exp32(logits - top[:, :1]))[:, None]


class Steps:
    """Runs step kernels on NumPy arrays."""

    def __init__(self, gpu: harness.Gpu) -> None:
        self.gpu = gpu
        self.module = gpu.load(harness.compile_cubin(SOURCE, gpu.arch))

    def call(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        inputs: list[Any],
        outputs: list[tuple[tuple[int, ...], Any]],
        order: str,
    ) -> list[Array]:
        """`order`: i takes the next input (array or scalar), o the next output."""
        ins, outs, args, made, held = iter(inputs), iter(outputs), [], [], []
        for c in order:
            if c == "i":
                value = next(ins)
                if isinstance(value, np.ndarray):
                    value = harness.Buffer(value.nbytes).put(value)
                    held.append(value)
                args.append(value)
            else:
                shape, dtype = next(outs)
                b = harness.Buffer(int(np.prod(shape)) * np.dtype(dtype).itemsize)
                b.fill(0xFF)
                made.append((b, shape, dtype))
                args.append(b)
        self.gpu.launch(self.gpu.kernel(self.module, name), grid, threads, tuple(args))
        self.gpu.sync()
        result = [b.get(shape, dtype) for b, shape, dtype in made]
        for b in [*held, *(m[0] for m in made)]:
            b.free()
        return result

    def map(self, function: int, x: Array) -> Array:
        return self.call(
            f"map{function}",
            (-(-x.size // 256),),
            256,
            [x, np.uint64(x.size)],
            [(x.shape, np.float32)],
            "iio",
        )[0]

    def quantize(self, x: Array) -> list[Array]:
        rows, k = x.shape
        shapes = [((rows, k), np.int8), ((rows, k // 32), np.float32), ((rows, k // 16), np.int16)]
        return self.call("quantize_rows", (-(-x.size // 256),), 256, [x, x.size // 32], shapes, "iiooo")

    def norm(self, x: Array, w: Array, eps: float) -> Array:
        return self.call(
            "norm_rows",
            (-(-len(x) // 8),),
            256,
            [x, w, *x.shape, float(eps)],
            [(x.shape, np.float32)],
            "iiiiio",
        )[0]

    def topk(self, logits: Array, k: int, renormalise: bool) -> list[Array]:
        rows, n = logits.shape
        return self.call(
            "topk_rows",
            (rows,),
            32,
            [logits, n, k, int(renormalise)],
            [((rows, k), np.int32), ((rows, k), np.float32)],
            "iiiioo",
        )

    def attention(self, q: Array, k: Array, v: Array, scale: float) -> Array:
        (heads, dim), cells = q.shape, len(k)
        splits = -(-cells // 256)
        parts = [
            ((heads, splits), np.float32),
            ((heads, splits), np.float32),
            ((heads, splits, dim), np.float32),
        ]
        m, part_sum, o = self.call(
            "attention_splits", (splits, heads), 256, [q, k, v, dim, cells, float(scale)], parts, "iiiiiiooo"
        )
        return self.call(
            "attention_heads",
            (heads,),
            dim,
            [m, part_sum, o, splits, dim],
            [((heads, dim), np.float32)],
            "iiiiio",
        )[0]

    def delta(
        self, state: Array, k: Array, q: Array, v: Array, decay: Array, beta: Array
    ) -> tuple[Array, Array]:
        """The kernel works in place; the state is fetched from the input's buffer."""
        heads = len(state)
        buffers = [harness.Buffer(a.nbytes).put(a) for a in (state, k, q, v, decay, beta)]
        out = harness.Buffer(heads * 128 * 4)
        self.gpu.launch(self.gpu.kernel(self.module, "delta_heads"), (16, heads), 256, (*buffers, out))
        self.gpu.sync()
        return out.get((heads, 128), np.float32), buffers[0].get(state.shape, np.float32)


def same(a: Array, b: Array) -> bool:
    """Equal bits, nothing left unwritten."""
    view = np.uint8
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool((np.ascontiguousarray(a).view(view) == np.ascontiguousarray(b).view(view)).all())
    )


def check(steps: Steps, cpu: Cpu, stride: int) -> dict[str, bool]:
    """Equality of every step form; `stride` thins the dense ranges of the functions."""
    a, rng = arithmetic(), np.random.default_rng(3)
    result = {}
    bits = np.arange(0, 0x42F00000, stride, dtype=np.int32).view(np.float32)  # 0 to 120
    for i, name in enumerate(FUNCTIONS):
        x = (
            bits
            if name != "log32"
            else np.arange(0x00800000, 0x7F800000, 2 * stride, dtype=np.int32).view(np.float32)
        )
        for sign in (1, -1) if name != "log32" else (1,):
            values = np.ascontiguousarray(x * np.float32(sign))
            result[f"{name} {'+-'[sign < 0]} ({x.size} values)"] = same(
                steps.map(i, values), cpu.map(i, values)
            )
    x = rng.standard_normal((7, 2560)).astype(np.float32) * np.exp(rng.standard_normal((7, 2560)) * 3).astype(
        np.float32
    )
    x[2, 64:96] = 0
    result["quantise"] = all(same(g, c) for g, c in zip(steps.quantize(x), cpu.quantize(x), strict=True))
    w = rng.standard_normal(2560).astype(np.float32)
    scale = np.float32(1) / np.sqrt(a.lane_dot(x, x) / np.float32(2560) + np.float32(1e-6))
    result["rms norm"] = same(steps.norm(x, w, 1e-6), (x * scale[:, None]) * w)
    logits = rng.standard_normal((50, 512)).astype(np.float32).round(2)  # rounding makes ties
    logits[1] = 0
    logits[2, ::2] = -0.0
    for renormalise in (True, False):
        ids, weights = steps.topk(logits, 10, renormalise)
        expected = topk(logits, 10, renormalise)
        result[f"router top 10, renormalise {renormalise}"] = bool((ids == expected[0]).all()) and same(
            weights, expected[1]
        )
    for cells in (1, 31, 256, 257, 1500):
        q, k, v = (rng.standard_normal((n, 256)).astype(np.float32) for n in (4, cells, cells))
        result[f"attention over {cells} cells"] = same(
            steps.attention(q, k, v, 1 / 16), attention(q, k, v, np.float32(1 / 16))
        )
    state = rng.standard_normal((6, 128, 128)).astype(np.float32)
    k, q, v = (rng.standard_normal((6, 128)).astype(np.float32) for _ in range(3))
    decay, beta = rng.uniform(0.5, 1, 6).astype(np.float32), rng.uniform(0, 1, 6).astype(np.float32)
    got, expected = steps.delta(state, k, q, v, decay, beta), delta(state, k, q, v, decay, beta)
    result["delta rule"] = all(same(g, e) for g, e in zip(got, expected, strict=True))
    return result


def main() -> None:
    result = check(Steps(harness.Gpu()), Cpu(), 3)
    for name, ok in result.items():
        print(f"{'equal' if ok else 'NOT EQUAL':9} {name}")


if __name__ == "__main__":
    main()
