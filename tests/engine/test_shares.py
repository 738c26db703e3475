"""Who computes missing experts: what options say, and what a plan sets aside for it."""

from dataclasses import replace

import pytest

from strata import _native, hw
from strata.config import EngineOptions
from strata.engine import shares
from strata.engine.planning import plan_file
from strata.errors import UsageError
from strata.synth import PlantedOptions, tiny_geometry, write_planted

BOX = "experts of prompts"


def options(**more):
    return EngineOptions(device="cpu", **more)


def test_shares_by_option():
    for given, share in (
        ({}, shares.BY_COSTS),
        ({"cpu_share": "0.25"}, 0.25),
        ({"cpu_share": "0"}, 0.0),
        ({"pcie_share": "0.25"}, 0.75),
    ):
        assert shares.cpu_share(options(**given)) == share
    with pytest.raises(UsageError, match="of the same misses"):
        shares.cpu_share(options(cpu_share="0.5", pcie_share="0.75"))


def test_the_mailbox_of_prompts_is_planned(tmp_path):
    """Where chunks share experts, and some have no slot."""
    g = replace(tiny_geometry("qwen4exp"), num_experts=16, num_experts_per_tok=4)
    path = tmp_path / "model.gguf"
    write_planted(path, PlantedOptions(g, topics=8, gain=None), 2)
    card = replace(hw.machine(2), gpus=(hw.Gpu("a card", 16 << 30, 16 << 30),), others=0)

    def box(**more):
        given = {"max_model_len": 512, "prefill": "256", "expert_cache": "8", "cpu_share": "0.5"}
        return plan_file(path, options(**given | more), machine=card).ram.part(BOX)

    mapped, _, _ = _native.gpu_tier_sizes(256, 4, g.hidden_size, 16)
    assert mapped < box() <= mapped + 256 * 4 * g.moe_intermediate_size * 4
    assert box(cpu_share="0") == box(prefill="0") == box(expert_cache="auto") == 0
