"""What would fit where a plan does not: the nearest value of one setting, the others as they are."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from strata.errors import MemoryLimitError
from strata.hw.machine import GIB, Machine
from strata.memory.plan_parts import own_prompt_bytes, staging_bytes
from strata.memory.plan_place import Placement, place
from strata.memory.plan_sizes import Choice, ModelSizes, PlanOptions
from strata.ops import PAGE_CELLS

_STEPS = 64  # of a tenth of a GiB when a larger machine is looked for: up to 6.4 GiB, then doublings


def largest_pool(
    model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice
) -> Placement | None:
    """The placement with the most pages for sequences to share, enough for one of full length; None where even that
    does not fit."""

    def at(pages: int) -> Placement | None:
        shared = replace(choice, shared_pages=pages)
        return _try(model, machine, options, replace(shared, resident=min(choice.resident, shared.cells)))

    return _most(at, choice.sequence_pages, choice.pages)


def longest_context(
    model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice
) -> Placement | None:
    """The placement with the longest context in whole pages that fits; None when not even one page does."""

    def at(pages: int) -> Placement | None:
        context = min(pages * PAGE_CELLS, choice.context)
        shorter = replace(choice, context=context, shared_pages=pages)
        resident = min(choice.resident, shorter.cells)
        return _try(model, machine, options, replace(shorter, resident=resident))

    return _most(at, 1, choice.sequence_pages)


def _most(at: Callable[[int], Placement | None], low: int, high: int) -> Placement | None:
    """The placement of the largest number that has one, `low` being the easiest."""
    best = at(low)
    if best is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        found = at(middle)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return best


def nearest_setting(model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice) -> str:
    """One change that makes it fit, in words; empty where none does."""
    shorter = longest_context(model, machine, options, choice)
    if shorter is not None and shorter.choice.context >= choice.context // 2:
        return f"--max-context {shorter.choice.context} fits"
    for text, change in _changes(model, options, choice):
        if change(machine) is not None:
            return f"{text} fits"
    if shorter is not None:
        return f"--max-context {shorter.choice.context} fits"
    return _larger_machine(model, machine, options, choice)


Attempt = Callable[[Machine], Placement | None]


def _changes(model: ModelSizes, options: PlanOptions, choice: Choice) -> Iterator[tuple[str, Attempt]]:
    def attempt(changed: Choice, opts: PlanOptions = options) -> Attempt:
        return lambda machine: _try(model, machine, opts, changed)

    if options.expert_slots is not None:
        yield "--expert-cache auto", attempt(choice, replace(options, expert_slots=None))
    if options.ram_budget is not None:
        yield "without --ram-budget-gib it", attempt(choice, replace(options, ram_budget=None))
    if model.stage(choice):
        yield "--kv-prefetch off", attempt(replace(choice, staged=False))
    for kv, cell in model.cells.items():
        if cell.nbytes < model.cell(choice.kv).nbytes:
            yield f"--kv {kv}", attempt(replace(choice, kv=kv))
    for resident in (choice.resident // 2, 20480):
        if 20480 <= resident < choice.resident and model.spills:
            yield f"--kv-resident {resident}", attempt(replace(choice, resident=resident))
    for prefill in (4096, 2048, 1024, 512, 256, 64):
        if prefill < choice.prefill:
            yield f"--prefill {prefill}", attempt(replace(choice, prefill=prefill))
    for sequences in sorted(
        {choice.sequences * 3 // 4, choice.sequences // 2, choice.sequences // 4, 1}, reverse=True
    ):
        if 0 < sequences < choice.sequences:
            fewer = replace(choice, sequences=sequences, shared_pages=choice.sequence_pages)
            fewer = replace(fewer, resident=min(choice.resident, fewer.cells))
            yield f"--parallel {sequences}", attempt(fewer)


def _larger_machine(model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice) -> str:
    """What memory would do, in tenths of a GiB."""
    large = 1 << 62
    roomy_ram = replace(machine, ram=large, others=0, cgroup_limit=None)
    gpus = tuple(replace(g, vram=large, free=large) for g in machine.gpus)
    found = _try(model, replace(roomy_ram, gpus=gpus), options, choice)
    if found is None:
        return ""
    needed = []
    if found.vram is not None and _try(model, roomy_ram, options, choice) is None:
        fixed = found.vram.used - found.slots.nbytes + found.lent + found.vram.reserve
        if (
            model.num_routed_experts and found.slots.count == model.num_routed_experts
        ):  # a smaller one has some of them, and streams the rest
            fixed += own_prompt_bytes(model, choice) + staging_bytes(model) - model.embedding
        explicit = found.slots.nbytes if options.expert_slots is not None else 0
        needed.append(f"{-(-10 * (fixed + explicit) // GIB) / 10} GiB of free VRAM")
    if _try(model, replace(machine, gpus=gpus), options, choice) is None:
        least = found.experts_in_ram if options.ram_budget is not None else model.least_ram_experts()
        fixed = found.ram.used - found.experts_in_ram + least
        # The reserve is a tenth of a small machine.
        needed.append(f"{-(-10 * min(fixed * 10 // 9, fixed + 2 * GIB) // GIB) / 10} GiB of free RAM")
    return f"{' and '.join(needed)} would do" if needed else ""


def _try(model: ModelSizes, machine: Machine, options: PlanOptions, choice: Choice) -> Placement | None:
    try:
        return place(model, machine, options, choice)
    except MemoryLimitError:
        return None
