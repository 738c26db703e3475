"""Groups of ops in one launch: a dense model's logits and nodes, replays that begin inside a group, reads by others."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from harness import Case, output, same_bits, weight
from test_cpu_ops import activations

from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine
from strata.engine.load import load_model
from strata.ops import linear, rms_norm
from strata.ops.elementwise import Add
from strata.synth.dense import DENSE, DenseOptions, write_dense

SMALL = replace(
    DENSE, num_layers=2, hidden_size=512, vocab_size=300, num_heads=4, num_kv_heads=2, intermediate_size=768
)


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    """A path for each type of matrices."""

    def path(kind):
        file = tmp_path_factory.getbasetemp() / f"{kind}.gguf"
        if not file.exists():
            write_dense(file, DenseOptions(kind, SMALL), 1)
        return file

    return path


def logits(path, backend, kv):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=384, kv=kv)
    loaded = load_model(path, options, None, backend)
    rows = np.concatenate(list(Engine(loaded).logits([(7 * i + 3) % 300 for i in range(290)])))
    return hashlib.sha256(rows.tobytes()).hexdigest(), loaded


@pytest.mark.parametrize(("kind", "kv"), [("Q4_K", "int8"), ("F16", "f16")])
def test_a_dense_model_in_eight_nodes_a_layer(kind, kv, dense, backend):
    want, _ = logits(dense(kind), CpuBackend(2), kv)
    got, loaded = logits(dense(kind), backend(), kv)
    assert got == want
    assert logits(dense(kind), CpuBackend(2), "f32")[0] != want
    replay = loaded.runner.programs.of("step", 1).replay
    assert len(replay.launches) == 2 * 8 + len(("embed", "add", "gather", "norm", "head"))


def residual_case(rows=3, width=512):
    """x + y, its norm, products of the norm, and a sum of all of them."""
    case = Case(rows)
    x, y = case.input(activations(rows, width), "x"), case.input(activations(rows, width, 2), "y")
    total = case.builder.rows(width, "total")
    case.builder.emit(Add(x, y, total))
    normed = rms_norm(case.builder, total, replace(weight("F32", 1, width, 4), shape=(width,)), 1e-5)
    a = linear(case.builder, normed, weight("Q4_K", width, width, 1))
    b = linear(case.builder, normed, weight("Q4_K", width, width, 2))
    c = linear(case.builder, normed, weight("F16", width, width, 3))
    out, between = output(rows, width, case.steps), [case.builder.rows(width, n) for n in "abc"]
    for p, q, to in (
        (a, b, between[0]),
        (between[0], c, between[1]),
        (between[1], total, between[2]),
        (between[2], normed, out),
    ):
        case.builder.emit(Add(p, q, to))
    return case, out


def test_what_others_read_is_written(backend):
    case, out = residual_case()
    want = case.run(CpuBackend(2), out)
    case, out = residual_case()
    assert same_bits(case.run(backend(), out), want)


def test_replays_may_begin_inside_a_group(backend):
    case, out = residual_case()
    want = case.run(CpuBackend(2), out)
    case, out = residual_case()
    device, program = backend(), case.finish()
    device.reserve(program.arena_bytes)
    replay = device.lower(program)
    assert len(replay.launches) < len(program) - 2
    for border in range(1, len(program)):
        for buffer, value in case.values.items():
            device.array(buffer)[: len(value)] = value
        device.array(out).fill(np.nan)
        replay.run(0, border)
        replay.run(border)
        assert same_bits(device.array(out)[:3].copy(), want), border


def test_without_groups_the_bits_are_the_same(driver):
    results = []
    for fused in (True, False):
        case, out = residual_case()
        results.append(case.run(CudaBackend(driver, 1 << 20, 1 << 18, fused=fused), out))
    assert same_bits(*results)
