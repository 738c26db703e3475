"""Scales of a prompt's float rows: found by the norm that makes the rows, in the bits of a launch of their own."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from harness import Case, output, same_bits, weight

from strata.backends.cuda import CudaBackend
from strata.errors import FaultError
from strata.ops import Buffer, copy_rows, grouped_norm, linear, stream_write
from strata.ops.elementwise import Add

WIDTH, ROWS = 128, 128
NORM_SCALES, OWN_SCALES = 7, 2  # arguments of stream_norm and row_scales that say where


def vector(n):
    """A norm's weight."""
    return replace(weight("F32", 1, n, 4), shape=(n,))


class Made:
    """Rows of every magnitude, [written,] normed and multiplied. `between`: what stands before the first product;
    `other`: it is of the rows before the norm; `counted`: it has a count of live rows of its own; `later`: one of rows
    that were overwritten."""

    def __init__(
        self,
        kinds=("BF16",),
        write=False,
        streams=4,
        live=ROWS,
        n=70,
        *,
        between=None,
        other=False,
        counted=False,
        later=False,
    ):
        self.case = case = Case(ROWS, live)
        b = case.builder
        b.form = "chunk"
        g, width = np.random.default_rng(5), streams * WIDTH

        def rows(name, width, of=None):
            x = g.standard_normal((ROWS, width)) * (np.logspace(-44, 12, ROWS)[:, None] if of is None else of)
            x[3], x[4, 1:] = 0, 0
            return case.input(x.astype(np.float32), name)

        residual = self.x = rows("x", width)
        if write:
            residual = stream_write(b, residual, rows("y", WIDTH), rows("inject", streams, 1))
        normed = grouped_norm(b, residual, vector(width), streams, 1e-6)
        if between is not None:
            between(b, normed)
        read, count = residual if other else normed, None
        if counted:
            case.set(case.steps.num_logit_rows, [live])
            count = Buffer("counted", (ROWS, n), live=case.steps.num_logit_rows)
        products = [linear(b, read, weight(kind, n, width, 8 + i), count) for i, kind in enumerate(kinds)]
        if later:
            b.emit(Add(normed, rows("far", width, 1e12), normed))
            products.append(linear(b, normed, weight("F16", n, width, 9)))
        self.outs = [output(ROWS, n, case.steps) for _ in products]
        for y, out in zip(products, self.outs, strict=True):
            copy_rows(b, y, out)
        self.program = case.finish()

    def replay(self, device, arena="step"):
        """Lowered, with the inputs in place."""
        replay = device.lower(self.program, arena)
        for buffer, value in self.case.values.items():
            device.array(buffer)[: len(value)] = value
        return replay

    def results(self, device):
        return [np.array(device.array(out)) for out in self.outs]


def entries(replay):
    return [node.kernel.entry for node in replay.launches]


def scales(device, replay, entry, at):
    """What the launch left where it had to put scales."""
    node = next(n for n in replay.launches if n.kernel.entry == entry)
    found = np.empty(ROWS, np.float32)
    device.driver.download(int(node.args[at]), found)
    return found


def one_by_one(driver, make):
    """Results and scales of the ops alone."""
    device, made = CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18, fused=False), make()
    replay = made.replay(device)
    assert entries(replay).count("row_scales") and "stream_norm" not in entries(replay)
    replay.run()
    return made.results(device), scales(device, replay, "row_scales", OWN_SCALES)


@pytest.mark.parametrize("live", [ROWS, 70])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("kinds", [("BF16",), ("F32", "F32"), ("F16", "F16")])
def test_the_norm_finds_them(kinds, write, live, backend, driver):
    """Powers of two hide in products, so that the scales themselves are compared; those beyond the live rows stay."""

    def make():
        return Made(kinds, write, live=live)

    want, own = one_by_one(driver, make)
    device, made = backend(), make()
    replay = made.replay(device)
    assert "row_scales" not in entries(replay) and entries(replay).count("wide_float") == len(kinds)
    replay.run()
    found = scales(device, replay, "stream_norm", NORM_SCALES)
    assert same_bits(found[:live], own[:live]) and len(set(found[:live])) > 3
    assert not found[live:].any()
    assert all(same_bits(g, w) for g, w in zip(made.results(device), want, strict=True))
    values = made.case.values[made.x].copy()
    values[[60, live - 1], 2 * WIDTH + 17] += 1e15
    device.array(made.x)[:] = values
    replay.run()
    changed = scales(device, replay, "stream_norm", NORM_SCALES) != found
    assert np.flatnonzero(changed).tolist() == [60, live - 1]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_threads(seed):
    driver = EmulatedDriver()
    driver.seed = seed
    want, own = one_by_one(driver, lambda: Made(write=True))
    device, made = CudaBackend(driver, slab_bytes=1 << 20, input_bytes=1 << 18), Made(write=True)
    replay = made.replay(device)
    replay.run()
    assert same_bits(scales(device, replay, "stream_norm", NORM_SCALES), own)
    assert same_bits(made.results(device)[0], want[0])


def test_rows_that_were_overwritten_have_scales_of_their_own(backend, driver):
    """Those that the norm left there would be stale, and it shows."""

    def make():
        return Made(("F16",), later=True)

    want, _ = one_by_one(driver, make)
    device, made = backend(), make()
    replay = made.replay(device)
    assert entries(replay).count("row_scales") == 1
    replay.run()
    assert all(same_bits(g, w) for g, w in zip(made.results(device), want, strict=True))
    for part in replay.parts:
        part.launches[:] = [node for node in part.launches if node.kernel.entry != "row_scales"]
    stale = made.replay(device)
    stale.parts = replay.parts
    stale.run()
    got = made.results(device)
    assert same_bits(got[0], want[0]) and not np.isfinite(got[1]).all()


def doubled(b, rows):
    b.emit(Add(rows, rows, rows))


@pytest.mark.parametrize(
    "more",
    [
        {"between": doubled},
        {"between": lambda b, rows: b.mark("layer.1")},
        {"streams": 2},
        {"streams": 8},
        {"other": True},
        {"counted": True},
    ],
    ids=["written between", "in another part", "two streams", "eight streams", "other rows", "another count"],
)
def test_rows_whose_scales_nobody_told(more, backend, driver):
    want, _ = one_by_one(driver, lambda: Made(**more))
    device, made = backend(), Made(**more)
    replay = made.replay(device, "chunk")
    assert entries(replay).count("row_scales") == entries(replay).count("stream_norm") == 1
    replay.run()
    assert same_bits(made.results(device)[0], want[0])


def test_few_outputs_ask_for_none(backend):
    device, made = backend(), Made(n=8)
    found = made.replay(device).launches
    norm = next(node for node in found if node.kernel.entry == "stream_norm")
    assert norm.args[NORM_SCALES] == 0 and {"linear_few"} < {node.kernel.entry for node in found}


def test_replays_in_parts_with_others_between(backend, driver):
    """A replay may begin or end anywhere, and others then have the scratch."""
    want, _ = one_by_one(driver, lambda: Made(write=True))
    device, made, other = backend(), Made(write=True), Made(("F32",), between=doubled)
    replay, beside = made.replay(device, "chunk"), other.replay(device)
    for border in range(1, len(made.program)):
        device.array(made.outs[0]).fill(np.nan)
        replay.run(0, border)
        beside.run()
        replay.run(border)
        assert same_bits(made.results(device)[0], want[0]), border


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_what_is_not_finite_is_told(wrong, backend):
    device, made = backend(), Made(live=70)
    replay = made.replay(device)
    values = made.case.values[made.x].copy()
    for row, told in ((70, False), (69, True)):
        values[row, 17] = wrong
        device.array(made.x)[:] = values
        if not told:
            replay.run()
            continue
        with pytest.raises(FaultError):
            replay.run()
