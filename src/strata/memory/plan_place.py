"""Placing one choice of settings: every part priced, held to its tier, the experts last."""

from dataclasses import dataclass

from strata.errors import MemoryLimitError
from strata.hw.machine import Gpu, Machine
from strata.memory.plan_parts import (
    STAGING,
    Part,
    Tier,
    fill,
    own_prompt_bytes,
    prompt_ring,
    ram_parts,
    vram_parts,
)
from strata.memory.plan_sizes import GIB, Choice, ModelSizes, PlanOptions
from strata.memory.slots import ExpertSlots, all_slots, count_slots, fill_slots


@dataclass(frozen=True)
class Placement:
    """Where everything goes. `vram` None: no GPU. Bytes."""

    model: ModelSizes
    choice: Choice
    ram: Tier
    vram: Tier | None
    slots: ExpertSlots  # of the VRAM expert cache
    experts_in_ram: int
    experts_on_ssd: int
    lent: int  # of the expert cache, to a prompt while it is read
    pinned: int  # of RAM, to be page-locked
    notes: tuple[str, ...] = ()
    offloaded: int = 0  # layers, the first ones, that the CPU computes beside the GPU


def place(model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice) -> Placement:
    """The placement; MemoryLimitError where a tier is too small."""
    tier, slots, lent = None, ExpertSlots(()), 0
    if machine.gpus:
        tier, slots, lent = _vram(model, machine.gpus[0], options, choice)
    elif options.expert_slots:
        raise MemoryLimitError(
            f"--expert-cache {options.expert_slots} needs VRAM, and there is no GPU; --vram-limit-gib plans for one"
        )
    tiered = tier is not None and slots.count < model.num_routed_experts
    ram, in_ram, on_ssd = _ram(model, machine, options, choice, model.prompt_box if tiered else 0)
    wanted = sum(p.nbytes for p in ram.parts if p.pinned) if machine.gpus else 0
    pinned = wanted if machine.lockable is None else min(wanted, machine.lockable)
    notes = _notes(machine, options, choice, wanted, on_ssd)
    return Placement(model, choice, ram, tier, slots, in_ram, on_ssd, lent, pinned, notes)


def _vram(model: ModelSizes, gpu: Gpu, options: PlanOptions, choice: Choice) -> tuple[Tier, ExpertSlots, int]:
    parts, prompt = vram_parts(model, choice)
    left = gpu.free - options.vram_reserve - sum(p.nbytes for p in parts)
    classes = model.expert_classes()
    count = options.expert_slots
    whole = all_slots(classes).nbytes + prompt + model.embedding <= left
    every = (count is None or count >= model.num_routed_experts) and whole

    def slots(own: int) -> ExpertSlots:
        return fill_slots(classes, max(left - own, 0)) if count is None else count_slots(classes, count)

    if every or not model.num_routed_experts:
        # Staged are experts in RAM, and the embedding lies there with them.
        parts = [*(p for p in parts if p.name != STAGING), Part("embedding", model.embedding)]
        left = gpu.free - options.vram_reserve - sum(p.nbytes for p in parts)
        own, lent = prompt, 0
    else:
        own, lent = own_prompt_bytes(model, choice), prompt
        if slots(own).nbytes < lent:  # more than the cache could lend
            own, lent = prompt_ring(model, choice.prefill) + prompt, 0
    found = slots(own)
    return fill("VRAM", gpu.free, options.vram_reserve, parts, own, found.nbytes), found, lent


def _ram(
    model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice, box: int
) -> tuple[Tier, int, int]:
    """The tier, and the bytes of experts in RAM and on the SSD. `box`: bytes of the prompts' mailbox."""
    parts = ram_parts(model, machine, choice, bool(machine.gpus), options.ngram_in_ram)
    parts.append(Part("experts of prompts", box, pinned=True))
    capacity = machine.ram_capacity
    reserve = options.ram_reserve(capacity)
    every = all_slots(model.expert_classes()).nbytes
    least = min(model.least_ram_experts(), every)
    if options.ram_budget is None:
        left = capacity - reserve - sum(p.nbytes for p in parts)
        in_ram = max(min(left, every), least)
    elif options.ram_budget < least:
        raise MemoryLimitError(
            f"--ram-budget-gib is {options.ram_budget / GIB:.3g}; a step's experts need at least {least / GIB:.3g}"
        )
    else:
        in_ram = min(options.ram_budget, every)
    return fill("RAM", capacity, reserve, parts, 0, in_ram, pinned=True), in_ram, every - in_ram


def _notes(
    machine: Machine, options: PlanOptions, choice: Choice, pinned: int, on_ssd: int
) -> tuple[str, ...]:
    notes = []
    if options.kv == "auto" and choice.kv != "f16":
        notes.append(
            f"--kv auto took {choice.kv}: f16 cells would not fit, or take the place of too many experts"
        )
    if machine.lockable is not None and pinned > machine.lockable:
        notes.append(
            f"{pinned / GIB:.3g} GiB should be page-locked, the limit (ulimit -l) is {machine.lockable / GIB:.3g}: a "
            "part is locked, the rest is copied more slowly"
        )
    if on_ssd:
        notes.append(f"{on_ssd / GIB:.3g} GiB of experts stay on the SSD")
        if not machine.huge_page:
            notes.append("transparent huge pages are off: experts in RAM are read more slowly")
    return tuple(notes)
