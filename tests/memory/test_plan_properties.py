"""The planner over thousands of random machines and models: nothing exceeds its tier, and only experts are elastic."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.random_plans import CAPACITIES, machines, models, plan_options, target
from strata.errors import MemoryLimitError, UsageError
from strata.hw import Machine
from strata.memory import ModelSizes, Placement, PlanOptions, plan
from strata.memory.plan_parts import EXPERTS, Part, Tier, own_prompt_bytes, prompt_ring
from strata.memory.slots import aligned

many = settings(max_examples=1000, deadline=None)
some = settings(max_examples=400, deadline=None)


def attempt(model: ModelSizes, machine: Machine, options: PlanOptions) -> Placement | None:
    try:
        return plan(model, machine, options)
    except (MemoryLimitError, UsageError):
        return None


def tiers(p: Placement) -> list[Tier]:
    return [p.ram] if p.vram is None else [p.vram, p.ram]


def fixed(tier: Tier) -> dict[str, int]:
    return {part.name: part.nbytes for part in tier.parts if part.name != EXPERTS}


def check(model: ModelSizes, machine: Machine, options: PlanOptions, p: Placement) -> None:
    """What holds of every placement."""
    for tier in tiers(p):
        assert sum(part.nbytes for part in tier.parts) + tier.reserve <= tier.capacity
        assert all(part.nbytes >= 0 for part in tier.parts)
        assert [part.name for part in tier.parts].count(EXPERTS) == 1
    assert p.ram.capacity == machine.ram_capacity
    every = sum(aligned(n) for n in model.expert_bytes) * model.num_experts
    assert p.experts_in_ram + p.experts_on_ssd == every and p.experts_on_ssd >= 0
    assert p.ram.part(EXPERTS) == p.experts_in_ram >= min(model.least_ram_experts(), every)
    if options.ram_budget is not None:
        assert p.experts_in_ram <= options.ram_budget
    assert machine.lockable is None or p.pinned <= machine.lockable
    if p.vram is not None:
        assert p.vram.capacity == machine.gpus[0].free and p.vram.reserve == options.vram_reserve
        assert p.slots.nbytes == p.vram.part(EXPERTS) and 0 <= p.slots.count <= model.num_routed_experts
        prompt = model.prompt_arena(p.choice.prefill)
        own, ring = own_prompt_bytes(model, p.choice), prompt_ring(model, p.choice.prefill)
        held = p.vram.part("prompt buffers"), p.lent
        assert held in {(prompt, 0), (own, prompt), (ring + prompt, 0)} and p.lent <= p.slots.nbytes
        for mine, theirs in zip(p.slots.classes, model.expert_classes(), strict=True):
            assert mine.nbytes == theirs.nbytes and mine.count <= theirs.count
    if options.max_context:
        assert p.choice.context == options.max_context
    assert p.choice.resident <= p.choice.cells


@many
@given(models(), machines(), plan_options())
def test_parts_never_exceed_the_tier(model, machine, options):
    p = attempt(model, machine, options)
    if p is not None:
        check(model, machine, options, p)
        assert plan(model, machine, options) == p


@some
@given(models(), machines(), plan_options(), st.integers(0, CAPACITIES[-1]))
def test_more_memory_goes_to_experts_alone(model, machine, options, more):
    p = attempt(model, machine, options)
    if p is None or p.choice.shared_pages:  # a pool that had to be cut grows first
        return
    options = replace(options, max_context=p.choice.context, kv=p.choice.kv)
    if p.vram is not None and model.spills:
        options = replace(options, kv_resident=p.choice.resident)
    p = attempt(model, machine, options)
    assert p is not None, "what was chosen does not fit when asked for"
    gpus = tuple(replace(g, vram=g.vram + more, free=g.free + more) for g in machine.gpus)
    larger = plan(model, replace(machine, ram=machine.ram + more, cgroup_limit=None, gpus=gpus), options)
    check(model, replace(machine, ram=machine.ram + more, cgroup_limit=None, gpus=gpus), options, larger)
    for before, after in zip(tiers(p), tiers(larger), strict=True):
        names = fixed(before).keys() - {
            "prompt buffers",
            "staging",
        }  # what is not needed when all experts are there
        assert {n: fixed(before)[n] for n in names} == {n: fixed(after)[n] for n in names}
        # Slots of several sizes are shared out anew, and less than one may be left over.
        mixed = (
            max(model.expert_bytes) + 256 if len(model.expert_classes()) > 1 and before.name == "VRAM" else 0
        )
        assert after.part(EXPERTS) >= before.part(EXPERTS) - mixed


@some
@given(models(), machines(gpu=True), plan_options())
def test_an_explicit_cache_is_held_to_the_same_check(model, machine, options):
    options = replace(options, expert_slots=None, max_num_seqs=1)
    p = attempt(model, machine, options)
    if p is None or not model.expert_bytes:
        return
    assert p.vram is not None
    options = replace(options, max_context=p.choice.context, kv=p.choice.kv)
    if model.spills:
        options = replace(options, kv_resident=p.choice.resident)
    uniform = len(model.expert_classes()) == 1
    asked = attempt(model, machine, replace(options, expert_slots=p.slots.count))
    if uniform:
        assert asked is not None and asked.slots == p.slots
    above = p.slots.count + 1
    if uniform and above <= model.num_routed_experts:
        with pytest.raises(MemoryLimitError, match="GiB of VRAM"):
            plan(model, machine, replace(options, expert_slots=above))
    if asked is not None:
        check(model, machine, options, asked)
        assert asked.slots.count == p.slots.count


@some
@given(models(), machines(), plan_options())
def test_what_does_not_fit_says_what_would(model, machine, options):
    options = replace(options, max_context=options.max_context or 4096)
    try:
        plan(model, machine, options)
    except UsageError:
        return
    except MemoryLimitError as error:
        text = str(error)
    else:
        return
    assert "\n" not in text
    hint = text.rsplit("; ", 1)[-1] if "; " in text else ""
    changed = changed_by(hint, machine, options)
    if changed is None:  # nothing this planner can change: the numbers must still be there
        assert "GiB" in text or "needs VRAM" in text or "--ram-budget-gib" in text
        return
    check(model, *changed, plan(model, *changed))


def changed_by(hint: str, machine: Machine, options: PlanOptions) -> tuple[Machine, PlanOptions] | None:
    """Machine and options with the setting that an error names; None where it names none."""
    words = hint.split()
    if hint.endswith("would do"):
        vram = next((float(words[i]) for i in range(len(words)) if "VRAM" in words[i + 3 : i + 5]), None)
        ram = next((float(words[i]) for i in range(len(words)) if "RAM" in words[i + 3 : i + 5]), None)
        if ram is not None:
            machine = Machine(
                int(ram * 2**30),
                0,
                None,
                0,
                machine.lockable,
                machine.huge_page,
                machine.threads,
                machine.gpus,
            )
        if vram is not None:
            first = replace(machine.gpus[0], vram=int(vram * 2**30), free=int(vram * 2**30))
            machine = replace(machine, gpus=(first, *machine.gpus[1:]))
        return machine, options
    if not hint.endswith("fits"):
        return None
    if hint == "without --ram-budget-gib it fits":
        return machine, replace(options, ram_budget=None)
    flag, value, _ = words
    if flag == "--kv":
        return machine, replace(options, kv=value)
    if flag == "--expert-cache":
        return machine, replace(options, expert_slots=None)
    name = {
        "--max-context": "max_context",
        "--kv-resident": "kv_resident",
        "--prefill": "prefill",
        "--parallel": "max_num_seqs",
    }[flag]
    return machine, replace(options, **{name: int(value)})


def test_the_check_sees_a_part_that_was_forgotten():
    """The properties can fail: a plan whose states are left out exceeds its tier."""
    model, machine, options = target(), Machine(64 << 30, 0), PlanOptions(max_context=4096)
    p = plan(model, machine, options)
    check(model, machine, options, p)
    states = Part("states", p.ram.free + 1)
    forgotten = replace(p, ram=replace(p.ram, parts=(*p.ram.parts, states)))
    with pytest.raises(AssertionError):
        check(model, machine, options, forgotten)
