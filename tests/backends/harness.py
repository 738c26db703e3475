"""Runs one small program on several backends from the same inputs, so that tests compare bits."""

from collections.abc import Callable

import numpy as np

from strata import _native
from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.ops import Buffer, Builder, StepBuffers, Weight
from strata.quants import FORMATS

LEVELS = _native.isa_levels()


class Case:
    """A program under construction with its inputs' values."""

    def __init__(self, rows, live=None, sequences=1, max_len=64):
        self.rows, self.live_rows = rows, rows if live is None else live
        self.steps = StepBuffers.create(max(rows, 1), sequences, max_len, max(rows, 1))
        self.builder = Builder(self.steps, rows)
        self.values: dict[Buffer, np.ndarray] = {self.steps.num_rows: np.array([self.live_rows], np.int32)}

    def input(self, value, name="x"):
        """A float32 input buffer [rows, width] holding `value`."""
        buffer = Buffer(name, value.shape, "f32", "input", live=self.steps.num_rows)
        self.values[buffer] = value
        return buffer

    def set(self, buffer, value):
        self.values[buffer] = np.asarray(value)

    def run(self, backend, out, whole=False):
        """Live rows (or all of) the buffer `out` after one replay; scratch outputs are copied out by an extra op."""
        program = self._program or self.finish()
        backend.reserve(program.arena_bytes)
        replay = backend.lower(program)
        for buffer, value in self.values.items():
            backend.array(buffer)[: len(value)] = value
        result = backend.array(out)
        if out.role == "output":
            result.fill(np.nan)
        replay.run()
        return result.copy() if whole else result[: self.live_rows].copy()

    _program = None

    def finish(self):
        self._program = self.builder.finish()
        return self._program


def output(rows, width, steps):
    return Buffer("out", (rows, width), "f32", "output", live=steps.num_rows)


def weight(name, n, k, seed, scale=None):
    """A weight of random valid blocks of the format (float formats: random values)."""
    fmt = FORMATS[name]
    g = np.random.default_rng([seed, fmt.type_id])
    if not fmt.quantised:
        x = g.standard_normal((n, k)).astype(np.float32)
        if name == "F32":
            raw = x.view(np.uint8)
        elif name == "F16":
            raw = x.astype(np.float16).view(np.uint8)
        else:
            raw = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return Weight(f"{name}.weight", fmt, (n, k), np.ascontiguousarray(raw).reshape(-1))
    return Weight(f"{name}.weight", fmt, (n, k), random_blocks(fmt, n * k // fmt.block_values, g))


HALF_OFFSETS = {  # where a block keeps its half-precision scales
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
    "Q5_1": (0, 2), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def random_blocks(fmt, count, g):
    """Random bytes are valid codes; scales are drawn so that values stay of order one."""
    raw = g.integers(0, 256, (count, fmt.block_bytes), dtype=np.uint8)
    if fmt.name == "MXFP4":
        raw[:, 0] = g.integers(118, 128, count)
    elif fmt.name == "NVFP4":
        raw[:, :4] = g.integers(0, 0x60, (count, 4))
    elif fmt.name == "IQ1_M":  # the half is spread over the top nibbles of four words: 0x2XXX
        raw[:, 55] = raw[:, 55] & 0x0F | 0x20
    else:
        for at in HALF_OFFSETS.get(fmt.name, (0,)):
            d = (g.uniform(0.001, 0.02, count) * g.choice([-1, 1], count)).astype(np.float16)
            raw[:, at : at + 2] = d[:, None].view(np.uint8)
    return raw.reshape(-1)


def on_every_level(make: Callable[[], tuple[Case, Buffer]], threads=(1, 2)):
    """Yields (label, result) for each instruction set and thread count, each on a case of its own."""
    for level in LEVELS:
        for n in threads:
            case, out = make()
            yield f"{level}, {n} threads", case.run(CpuBackend(n, level), out)


def contract(make: Callable[[], tuple[Case, Buffer]]):
    """The contract reference's result."""
    case, out = make()
    return case.run(ReferenceBackend("contract"), out)


def float_reference(make: Callable[[], tuple[Case, Buffer]]):
    """The float reference's result."""
    case, out = make()
    return case.run(ReferenceBackend("float"), out)


def same_bits(a, b):
    """Equal shapes and bits."""
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def nrmse(got, want):
    """RMS error over RMS of the reference."""
    return float(
        np.sqrt(np.mean((got.astype(np.float64) - want) ** 2) / np.mean(want.astype(np.float64) ** 2))
    )
