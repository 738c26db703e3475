"""Row by row work of prompts, several ops a launch: the CPU's bits, with sequences, rings and taps."""

import numpy as np
import pytest

from backends.harness import Case, same_bits, weight
from strata.backends.cpu import CpuBackend
from strata.ops import (
    Buffer,
    Builder,
    causal_conv,
    copy_rows,
    gated_add,
    gated_norm,
    grouped_norm,
    linear,
    sigmoid_gate,
    stream_mix,
    stream_write,
    unit_heads,
)

SLOTS, HEAD = 5, 64


def setup(groups, taps=()):
    rows = sum(n for _, n, _ in groups)
    case = Case(rows, sequences=3, max_len=512)
    case.builder = Builder(case.steps, rows, "chunk")
    case.set(case.steps.sequences, np.repeat([g[0] for g in groups], [g[1] for g in groups]).astype(np.int32))
    case.set(
        case.steps.positions, np.concatenate([np.arange(p, p + n) for _, n, p in groups]).astype(np.int32)
    )
    for name, at in (("tap_positions", 0), ("tap_slots", 1)):
        case.set(getattr(case.steps, name), np.array([*(t[at] for t in taps), 0, 0, 0, 0][:4], np.int32))
    return case, rows


def rows_of(case, rows, width, seed):
    x = np.random.default_rng([seed, width]).standard_normal((rows, width)).astype(np.float32)
    return case.input(x, f"x{seed}")


def vector(seed, *shape):
    w = weight("F32", 1, int(np.prod(shape)), seed)
    return type(w)(w.name, w.format, shape, w.data)


def convolution(dilation, unit):
    groups = ((1, 64, 0), (0, 128, 64))
    case, rows = setup(groups, [(128, 3), (192, 4)])
    channels, back = 5 * HEAD, 3 * dilation
    ring = Buffer("ring", (SLOTS, 32 + back, channels), "f32", "state")
    case.set(ring, np.random.default_rng(3).standard_normal(ring.shape).astype(np.float32))
    y = causal_conv(case.builder, rows_of(case, rows, channels, 1), vector(2, channels, 4), ring, dilation)
    outs = [y, unit_heads(case.builder, y, 2, HEAD)] if unit else [y]
    return case, [*copies(case, outs), ring]


def copies(case, results):
    found = []
    for i, y in enumerate(results):
        found.append(Buffer(f"out{i}", y.shape, role="output", live=case.steps.num_rows))
        copy_rows(case.builder, y, found[-1])
    return found


def streams(write, products):
    """Two streams of 256: written, normed, mixed; `products`: quantised ones read the mean, and floats too."""
    case, rows = setup(((0, 64, 0),))
    residual = rows_of(case, rows, 512, 1)
    outs = []
    if write:
        residual = stream_write(
            case.builder, residual, rows_of(case, rows, 256, 2), rows_of(case, rows, 2, 3)
        )
        outs.append(residual)
    normed = grouped_norm(case.builder, residual, vector(4, 512), 2, 1e-6)
    mixed = stream_mix(case.builder, normed, rows_of(case, rows, 512, 5), 2)
    outs.append(linear(case.builder, mixed, weight("Q8_0", 32, 256, 6)) if products else mixed)
    return case, copies(case, [*outs, normed])


def heads(kind, products):
    case, rows = setup(((0, 64, 0),))
    x, z = rows_of(case, rows, 3 * HEAD, 1), rows_of(case, rows, 6 * HEAD, 2)
    if kind == "attention":
        y = sigmoid_gate(case.builder, x, z, HEAD, 2 * HEAD, HEAD)
    else:
        y = gated_norm(
            case.builder, x, rows_of(case, rows, 3 * HEAD, 3), vector(4, HEAD), 1e-6, silu=kind == "silu"
        )
    outs = [linear(case.builder, y, weight("Q8_0", 32, 3 * HEAD, 6)), y] if products else [y]
    return case, copies(case, outs[:1])


def shared():
    """A shared expert's rows, added by their gate."""
    case, rows = setup(((0, 64, 0),))
    y = gated_add(
        case.builder, rows_of(case, rows, 96, 1), rows_of(case, rows, 96, 2), rows_of(case, rows, 1, 3)
    )
    return case, copies(case, [y])


MAKE = {
    "convolution": lambda: convolution(1, True),
    "convolution alone": lambda: convolution(3, False),
    "streams": lambda: streams(True, False),
    "norm, int8": lambda: streams(False, True),
    "silu": lambda: heads("silu", True),
    "sigmoid": lambda: heads("sigmoid", False),
    "attention": lambda: heads("attention", True),
    "attention, floats": lambda: heads("attention", False),
    "shared expert": shared,
}
KERNELS = {
    "convolution": {"conv_prompt", "conv_keep"}, "convolution alone": {"conv_prompt", "conv_keep"},
    "streams": {"stream_norm", "stream_mean"}, "norm, int8": {"stream_norm", "stream_mean"},
    "silu": {"gated_norm_prompt"}, "sigmoid": {"gated_norm_prompt"},
    "attention": {"sigmoid_gate_prompt"}, "attention, floats": {"sigmoid_gate_prompt"},
    "shared expert": {"gated_add"},
}  # fmt: skip


def results(made, backend):
    case, outs = made
    case.run(backend, outs[0])
    return [np.array(backend.array(b)) for b in outs]


@pytest.mark.parametrize("name", MAKE)
def test_bits(backend, driver, name):
    device = backend()
    got, want = results(MAKE[name](), device), results(MAKE[name](), CpuBackend(2))
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
    case, outs = MAKE[name]()
    buffer = next(b for b in case.values if b.name == "x1")
    case.values[buffer][-1, 3] += 1
    assert not same_bits(results((case, outs), backend())[0], got[0])


@pytest.mark.parametrize("name", MAKE)
def test_kernels(backend, name):
    """Nothing falls back to the ops one by one."""
    case, _ = MAKE[name]()
    program, device = case.finish(), backend()
    device.reserve(program.arena_bytes)
    found = {node.kernel.entry for node in device.lower(program).launches}
    assert found >= KERNELS[name]
    assert not found & {
        "causal_conv",
        "unit_heads",
        "grouped_norm",
        "stream_write",
        "stream_mix",
        "gated_norm",
        "sigmoid_gate",
    }
    assert "quantize_rows" not in found
