"""The plan of known models: who gets what, what is said, and what gives way."""

from dataclasses import replace

import pytest

from memory.hollow import write_hollow
from memory.random_plans import GIB, target
from strata.config import EngineOptions
from strata.engine.planning import check_after_load, plan_file
from strata.errors import MemoryLimitError, UsageError
from strata.hw import Gpu, Machine
from strata.memory import PlanOptions, plan
from strata.memory.plan_parts import OWN_PROMPT_ROWS, prompt_ring
from strata.memory.plan_text import lines, to_json
from strata.synth.geometry import FULL, ngram_base_for, tiny_geometry


def card(vram: float, used: float = 0.0) -> Gpu:
    return Gpu("card", int(vram * GIB), int((vram - used) * GIB))


def desk(ram: float = 64, vram: float = 24, **more: object) -> Machine:
    return Machine(int(ram * GIB), 2 * GIB, threads=16, gpus=(card(vram),), **more)


def test_a_long_context_takes_int8_and_leaves_most_cells_in_ram():
    p = plan(target(), desk(), PlanOptions())
    assert (p.choice.kv, p.choice.resident, p.choice.context) == ("int8", 32768, 262144)
    assert any("--kv auto took int8" in note for note in p.notes)
    assert p.ram.part("KV copy") == 12672 * 262144
    assert p.vram.part("KV") == 1056 * 262144 + 12672 * 32768
    short = plan(target(), desk(), PlanOptions(max_context=16384))
    assert (short.choice.kv, short.choice.resident, short.ram.part("KV copy")) == ("f16", 16384, 0)


def test_the_cache_lends_a_prompt_its_buffers():
    big = replace(target(), chunk_arena=1426063360, chunk_rows=8192)
    lending = plan(big, desk(), PlanOptions(prefill=8192))
    own = prompt_ring(big, 8192) + big.prompt_arena(OWN_PROMPT_ROWS)  # what is there for short prompts too
    assert lending.vram.part("prompt buffers") == own and lending.lent == big.prompt_arena(8192) > GIB
    crowded = plan(big, desk(), PlanOptions(prefill=8192, expert_slots=10, max_context=8192))
    assert crowded.lent == 0  # ten slots cannot hold it
    assert crowded.vram.part("prompt buffers") == prompt_ring(big, 8192) + big.prompt_arena(8192)
    everything = plan(big, desk(vram=96), PlanOptions(prefill=8192))
    assert everything.lent == 0 and everything.vram.part("prompt buffers") == big.prompt_arena(8192)
    assert everything.vram.part("embedding") and not everything.vram.part("staging")


def test_short_ram_leaves_experts_on_the_ssd():
    p = plan(target(), desk(ram=32), PlanOptions())
    assert 0 < p.experts_on_ssd == p.slots.__class__(target().expert_classes()).nbytes - p.experts_in_ram
    assert any("on the SSD" in note for note in p.notes)
    half = plan(target(), desk(), PlanOptions(ram_budget=20 * GIB))
    assert half.experts_in_ram == 20 * GIB == half.ram.part("experts")
    with pytest.raises(
        MemoryLimitError, match=r"--ram-budget-gib is 0.00931; a step's experts need at least 0.0405"
    ):
        plan(target(), desk(), PlanOptions(ram_budget=10_000_000))


def test_slots_of_mixed_sizes_follow_their_experts():
    p = plan(target(), desk(), PlanOptions())
    large, small = p.slots.classes
    assert (large.nbytes, small.nbytes) == (2176000, 1715200)
    assert large.count / small.count == pytest.approx(8 / 40, rel=0.01)


@pytest.mark.parametrize(
    "vram, options, said",
    [
        (10.9, PlanOptions(max_context=262144, kv="f32"), "--kv f16 fits"),
        (13, PlanOptions(max_context=262144, expert_slots=24576), "--expert-cache auto fits"),
        (15.1, PlanOptions(max_context=32768, max_num_seqs=32, kv="q4"), "--parallel 24 fits"),
    ],
)
def test_the_nearest_setting_is_named(vram, options, said):
    with pytest.raises(MemoryLimitError) as error:
        plan(target(), desk(vram=vram), options)
    text = str(error.value)
    assert text.endswith(said) and f"GiB of VRAM and {vram} GiB may be used (" in text
    assert "reserve 0.684" in text


def test_sequences_share_cells_where_not_all_can_be_long():
    p = plan(target(), desk(vram=24), PlanOptions(kv="f32", kv_resident=262144, max_num_seqs=4))
    assert p.choice.sequence_pages <= p.choice.pages < 4 * p.choice.sequence_pages
    assert p.choice.context == 262144 and any("shared by up to 4 sequences" in note for note in p.notes)


def test_a_smaller_format_is_named_before_half_the_context():
    with pytest.raises(MemoryLimitError, match="--kv int8 fits"):
        plan(target(), replace(desk(ram=17), gpus=()), PlanOptions(max_context=262144, kv="f32"))


def test_a_context_that_nobody_asked_for_shrinks():
    p = plan(replace(target(), embedding=0), desk(vram=10.2, ram=64), PlanOptions(kv="f16"))
    assert 64 <= p.choice.context < 262144 and p.choice.context % 64 == 0
    assert any(f"a context of {p.choice.context} tokens is taken" in note for note in p.notes)
    with pytest.raises(MemoryLimitError, match=r"; 10\.3 GiB of free VRAM would do"):
        plan(target(), desk(vram=4), PlanOptions())


def test_limits_of_the_control_group_and_of_locking_count():
    assert desk(cgroup_limit=20 * GIB, cgroup_others=GIB).ram_capacity == 19 * GIB
    p = plan(target(), desk(lockable=GIB), PlanOptions())
    assert p.pinned == GIB and any("ulimit -l" in note for note in p.notes)


def test_sizes_given_stand_for_the_machine():
    found = Machine(16 * GIB, 2 * GIB, gpus=(card(24, used=1),))
    taken = found.taken_as(64, 12, 20)
    assert taken.ram_capacity == 62 * GIB and taken.gpus[0].free == 11 * GIB and taken.gpus[0].link == 20e9
    assert found.taken_as(0, 0, 0) == found
    assert Machine(GIB, 0).taken_as(0, 24, 0).gpus[0].free == 24 * GIB


def test_few_resident_cells_are_refused():
    with pytest.raises(UsageError, match="--kv-resident is 4096; it must be at least 20480"):
        plan(target(), desk(), PlanOptions(kv_resident=4096))
    with pytest.raises(MemoryLimitError, match="there is no GPU; --vram-limit-gib"):
        plan(target(), replace(desk(), gpus=()), PlanOptions(expert_slots=5))


def test_the_target_from_its_header_alone(tmp_path):
    """A file of 77 GB that is one hole: nothing but its header can have been read."""
    geometry = replace(FULL, draft=True, ngram_base=ngram_base_for(320001536, 16))
    path = write_hollow(tmp_path / "target.gguf", geometry)
    assert path.stat().st_size > 70e9 and path.stat().st_blocks * 512 < 64 << 20
    options = EngineOptions(vram_limit_gib=24, ram_limit_gib=64, prefill=64)
    p = plan_file(path, options, path, Machine(16 * GIB, 0))
    sizes = p.model
    assert sizes.expert_bytes == (1715200,) * 48 and sizes.num_experts == 512
    assert sizes.ngram == 28800138240 and sizes.dense == 4778544640
    assert sizes.cells["int8"].spillable == 12 * 1056
    text, found = "\n".join(lines(p)), to_json(p)
    assert "expert cache" in text and "24.00 GiB" in text
    assert found["tiers"]["vram"]["parts"]["experts"] == p.slots.nbytes and found["kv_resident"] == 32768


def test_blob_sizes_are_the_layers_own(tmp_path):
    path = write_hollow(tmp_path / "tiny.gguf", tiny_geometry("qwen35moe"), {"down": "Q8_0"})
    p = plan_file(path, EngineOptions(), machine=Machine(4 * GIB, 0))
    assert len(set(p.model.expert_bytes)) == 1 and len(p.model.expert_bytes) == 4
    assert p.experts_on_ssd == 0 and p.vram is None


def test_what_others_took_meanwhile_is_an_error(tmp_path):
    path = write_hollow(tmp_path / "tiny.gguf", tiny_geometry("qwen35moe"))
    before = Machine(4 * GIB, 0)
    p = plan_file(path, EngineOptions(), machine=before)
    check_after_load(p, before)
    check_after_load(p, replace(before, others=2 * GIB))
    with pytest.raises(MemoryLimitError, match=r"after loading 0\.2 GiB of RAM may be used, the plan had 4"):
        check_after_load(p, replace(before, others=int(3.8 * GIB)))
