"""Whole models reading prompts in the chunk form: near the CPU's, and the same bits for any size of chunk."""

import numpy as np
import pytest

from backends.harness import nrmse
from models.driver import Driver, digest
from strata.backends.cpu import CpuBackend
from strata.synth.geometry import Geometry
from strata.synth.planted import PlantedOptions, write_planted

BOUND = 2e-3  # docs/contract.md
GEOMETRY = Geometry(
    "qwen4exp", num_layers=4, hidden_size=128, vocab_size=256, head_dim=64, rotary_dim=16, rope_sections=(3, 3, 2, 0),
    num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, shared_intermediate_size=64, state_dim=128,
    stream_rank=32, index_budget=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "planted.gguf"
    write_planted(path, PlantedOptions(geometry=GEOMETRY, gain=1.0), 2)
    return path


def test_planted(planted, backend, kv="int8"):
    tokens = np.random.default_rng(2).integers(0, 250, 128).tolist()
    want = Driver(planted, CpuBackend(2), kv).read(0, tokens, 128)
    got = Driver(planted, backend(), kv).read(0, tokens, 128)
    assert nrmse(got, want) < BOUND
    assert digest(got) != digest(want)  # tensor cores were used
    device = Driver(planted, backend(), kv)
    assert digest(device.read(0, tokens, 64)) == digest(got)
    tokens[0] += 1
    assert nrmse(device.read(1, tokens[:64], 64), want[:64]) > 10 * BOUND


def test_planted_streams_are_not_read_for_scales(planted, backend):
    """Every norm before a low rank tells them: of two sublayers a layer, and the head."""
    nodes = Driver(planted, backend())._chunk.launches
    scaled = [int(node.args[3]) for node in nodes if node.kernel.entry == "row_scales"]
    telling = [node for node in nodes if node.kernel.entry == "stream_norm" and node.args[7]]
    assert len(telling) == 2 * GEOMETRY.num_layers + 1
    assert scaled and GEOMETRY.num_streams * GEOMETRY.hidden_size not in scaled
