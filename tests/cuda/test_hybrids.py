"""Architectures with recurrent state, sparse attention and experts on the emulated device: the CPU's bits for any rows,
sequences, buckets and commits, in both forms, and in any order of threads."""

import emulator
import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from golden import ALL

import models.driver
from backends.harness import nrmse
from models.driver import Driver, Rows, digest
from strata.backends.cpu import CpuBackend
from strata.backends.cuda import CudaBackend
from strata.synth.geometry import Geometry
from strata.synth.planted import PlantedOptions, write_planted

FAMILIES = ("qwen35", "qwen3moe", "qwen3next", "qwen4exp")
NAMES = [n for n, case in ALL.items() if n.startswith(FAMILIES) and not case.record["checkpoint"]]
FEW = ["qwen35moe-quantised", "qwen4exp-quantised"]


TINY = Geometry(
    "qwen4exp", num_layers=4, hidden_size=256, vocab_size=256, head_dim=64, rotary_dim=16, rope_sections=(3, 3, 2, 0),
    num_experts=16, num_experts_per_tok=4, moe_intermediate_size=64, shared_intermediate_size=64, state_dim=128,
    stream_rank=64, index_budget=16,
)  # fmt: skip


# Two layers whose rows have segments as long as the full-size model's: thread blocks that stay, turned weights.
WIDE = Geometry(
    "qwen4exp", num_layers=2, interval=2, hidden_size=2560, vocab_size=256, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=640, shared_intermediate_size=640, state_dim=128, stream_rank=32, value_heads=16,
    ngram_layer=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A file whose sublayers all go through the kernels of the full-size one."""
    path = tmp_path_factory.mktemp("planted") / "planted.gguf"
    write_planted(path, PlantedOptions(geometry=TINY, gain=4.0), 2)
    return path


def device(seed=0, slab_bytes=1 << 20):
    return CudaBackend(EmulatedDriver(seed=seed), slab_bytes=slab_bytes, input_bytes=1 << 16)


def both(name, backend, **options):
    return [Driver(ALL[name].model_path, b, **options) for b in (CpuBackend(2), backend)]


def tokens_of(name, count):
    return ALL[name].tokens.tolist()[:count]


def mixed_steps(d, tokens, most, turns):
    """Logits of steps whose rows, sequences and commits vary; every third step has drafts that are dropped."""
    at, out, rng = {0: 0, 1: 0, 2: 0}, [], np.random.default_rng(most)
    for turn in range(turns):
        rows, left = [], most
        for sequence in rng.permutation(3).tolist():
            n = min(left, int(rng.integers(0, 5)) if sequence else max(1, left // 2))
            left -= n
            if n:
                part = tokens[at[sequence] % 30 :][:n]
                rows.append(Rows(sequence, at[sequence], part))
        rows.sort(key=lambda r: r.sequence)
        out.append(d.step(*rows))
        d.commit({r.sequence: 0 for r in rows})
        for r in rows:
            accepted = len(r.tokens) if turn % 3 else max(1, len(r.tokens) - 1)
            d.commit({r.sequence: accepted})
            at[r.sequence] += accepted
    return np.concatenate(out)


@pytest.mark.parametrize("name", NAMES)
def test_mixed_steps(name):
    """The first sequences' steps pass the borders of blocks and splits of the tiny files."""
    cpu, cuda = (mixed_steps(d, tokens_of(name, 40), 12, 5) for d in both(name, device(seed=3)))
    assert digest(cuda) == digest(cpu)


@pytest.mark.parametrize(("rows", "name"), [(n, FEW[i % 2]) for i, n in enumerate((1, 2, 4, 8, 16, 32))])
def test_buckets(name, rows, monkeypatch):
    monkeypatch.setattr(models.driver, "ROWS", rows)
    cpu, cuda = (mixed_steps(d, tokens_of(name, 40), rows, 3) for d in both(name, device()))
    assert digest(cuda) == digest(cpu)


@pytest.mark.parametrize(("rows", "kv"), [(1, "int8"), (8, "f32"), (1, "q4"), (8, "k8v4")])
def test_fused_sublayers(planted, rows, kv, monkeypatch):
    """10 nodes a layer with the delta rule, 12 with attention, for one row; n-gram layer, head and inputs aside."""
    monkeypatch.setattr(models.driver, "ROWS", rows)
    tokens = np.random.default_rng(2).integers(0, 250, 28).tolist()
    backend = device(seed=4)
    cpu, cuda = (
        Driver(planted, b, kv) if rows == 1 else Driver(planted, b, kv, sequences=3)
        for b in (CpuBackend(2), backend)
    )
    if rows == 1:
        assert digest(cuda.read(0, tokens)) == digest(cpu.read(0, tokens))
        nodes = [n.kernel.entry for n in backend.driver.launched]
        assert nodes.count("streams_low") == 2 * TINY.num_layers + 1
        assert len(nodes) == 3 * 10 + 12 + 3 + 12 + 5
    else:
        assert digest(mixed_steps(cuda, tokens, rows, 4)) == digest(mixed_steps(cpu, tokens, rows, 4))


def test_rows_as_long_as_the_full_size_model_has(tmp_path, monkeypatch):
    monkeypatch.setattr(models.driver, "ROWS", 1)
    path = tmp_path / "wide.gguf"
    write_planted(path, PlantedOptions(geometry=WIDE, gain=4.0), 2)
    backend = device(seed=5)
    want, got = (Driver(path, b) for b in (CpuBackend(2), backend))
    assert digest(got.read(0, [3, 7])) == digest(want.read(0, [3, 7]))
    nodes = {n.kernel.entry: n for n in backend.driver.launched}
    assert {"products_stream", "product_write", "experts_gate_up", "experts_down"} <= nodes.keys()
    assert dict(nodes["experts_gate_up"].kernel.source.macros)["STRATA_STAGED"] == 1


@pytest.mark.parametrize("kv", ["f16", "int8", "k8v4", "q4"])
def test_smaller_keys_and_values(kv):
    cpu, cuda = (d.read(0, tokens_of("qwen4exp", 24)) for d in both("qwen4exp", device(), kv=kv))
    assert digest(cuda) == digest(cpu)


@pytest.mark.parametrize("kv", ["k8v4", "q4"])
def test_cells_of_four_bits_without_groups(planted, kv):
    """Op by op: the turn, stores and reads each by a kernel of their own."""
    tokens = np.random.default_rng(2).integers(0, 250, 30).tolist()
    alone = CudaBackend(EmulatedDriver(), slab_bytes=1 << 20, input_bytes=1 << 16, fused=False)
    digests = [digest(mixed_steps(Driver(planted, b, kv), tokens, 4, 3)) for b in (CpuBackend(2), alone)]
    assert digests[0] == digests[1]


def chunks_and_tap(d, tokens, most):
    """Two blocks in chunks of at most `most`, the state written out between them, and a continuation from there."""
    blocks = [
        d.chunk(Rows(0, at, tokens[at : at + most]), [(64, 3)] if at < 64 else [])
        for at in range(0, 128, most)
    ]
    rest = d.step(Rows(0, 128, tokens[128:136]))
    states = [np.asarray(d.at(b))[3].ravel() for b in d.state.recurrent() if b.dtype == "f32"]
    return np.concatenate(blocks), rest, np.concatenate(states)


@pytest.mark.parametrize("name", ["qwen35", "qwen4exp"])
def test_chunk_form_and_taps(name):
    tokens = tokens_of(name, 136)
    cpu, cuda = both(name, device())
    want, got = chunks_and_tap(cpu, tokens, 128), chunks_and_tap(cuda, tokens, 128)
    for expected, found in zip(want, got, strict=True):
        assert nrmse(found, expected) < 2e-3  # docs/contract.md
    single = chunks_and_tap(Driver(ALL[name].model_path, device()), tokens, 64)
    assert [digest(x) for x in single] == [digest(x) for x in got]
    other = chunks_and_tap(cuda, [*tokens[:63], 7, *tokens[64:]], 128)
    assert min(nrmse(o, w) for o, w in zip(other, want, strict=True)) > 2e-2


def test_no_order_of_threads_changes_a_bit():
    tokens = tokens_of("qwen4exp-quantised", 30)
    digests = {
        digest(mixed_steps(Driver(ALL["qwen4exp-quantised"].model_path, device(seed)), tokens, 8, 2))
        for seed in (0, 1, 2, 3)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["planted", "qwen35moe-quantised"])
def test_no_kernel_reads_before_it_waits(name, planted, monkeypatch):
    """What launches write is learnt in one run; in the next it may not be touched before dependency_wait, nor
    before the launches before the predecessor are complete where a kernel relies on them."""
    monkeypatch.setattr(models.driver, "ROWS", 1)
    backend = device()
    d = Driver(planted if name == "planted" else ALL[name].model_path, backend)
    want = []
    for watch in (emulator.WATCH, emulator.ENFORCE):
        backend.driver.watch = watch
        want.append(digest(d.step(Rows(0, 0, [3]))))
    assert want[0] == want[1]


def test_a_fault_is_reported():
    d = Driver(ALL["qwen4exp"].model_path, device())
    d.step(Rows(0, 0, [1, 2]))
    d.at(d.steps.page_table)[0, 0] = 10_000
    with pytest.raises(Exception, match="outside its table"):
        d._step.run()
