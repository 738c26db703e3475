"""The memory plan: a pure function of model, machine and options.

Without a GPU there is one tier, RAM. With one, the weights that every step reads, the resident part of the keys and
values, and the states of sequences lie in VRAM; the expert cache takes the rest there and lends it to prompts. All
experts lie in RAM, or as many as fit; the others stay on the SSD.
"""

from dataclasses import replace

from strata.errors import MemoryLimitError, UsageError
from strata.hw.machine import Gpu, Machine
from strata.memory.kv import KVType
from strata.memory.plan_nearest import largest_pool, longest_context, nearest_setting
from strata.memory.plan_place import Placement, place
from strata.memory.plan_prompts import LEAST, with_chunk
from strata.memory.plan_sizes import Choice, ModelSizes, PlanOptions
from strata.ops import PAGE_CELLS

AUTO_KV_SHARE = 8  # cells of more than an eighth of VRAM cost more in experts than f16 is worth
LEAST_RESIDENT = 20480  # cells: what eight rows of a step may select, and their newest
AUTO_RESIDENT = 32768


def plan(model: ModelSizes, machine: Machine, options: PlanOptions) -> Placement:
    """The placement; MemoryLimitError with what is needed, what there is and the nearest setting that fits.

    A context and a format that nobody asked for are chosen so that they fit.
    """
    return with_chunk(_plan(model, machine, options), model, machine, options)


def _plan(model: ModelSizes, machine: Machine, options: PlanOptions) -> Placement:
    choices = _choices(model, machine, options)
    failures = []
    for choice in choices:
        try:
            return place(model, machine, options, choice)
        except MemoryLimitError as error:
            failures.append(str(error))
    if options.max_num_seqs > 1:
        shared = [p for c in choices if (p := largest_pool(model, machine, options, c)) is not None]
        if shared:
            best = max(shared, key=lambda p: p.choice.pages)
            return replace(best, notes=(*best.notes, _shared_note(best)))
    if not options.max_context:
        shorter = [p for c in choices if (p := longest_context(model, machine, options, c)) is not None]
        if shorter:
            best = max(shorter, key=lambda p: p.choice.context)
            note = f"{failures[0]}: a context of {best.choice.context} tokens is taken"
            return replace(best, notes=(*best.notes, note))
    cheapest = min(choices, key=lambda c: _resident_bytes(model, c))
    cheapest = replace(cheapest, shared_pages=cheapest.sequence_pages)
    cheapest = replace(cheapest, resident=min(cheapest.resident, cheapest.cells))
    try:
        return place(model, machine, options, cheapest)
    except MemoryLimitError as error:
        hint = nearest_setting(model, machine, options, cheapest)
        raise MemoryLimitError(f"{error}; {hint}" if hint else str(error)) from None


def _shared_note(p: Placement) -> str:
    return (
        f"{p.choice.cells} cells are shared by up to {p.choice.sequences} sequences: not all can be "
        f"{p.choice.context} tokens long at once"
    )


def _resident_bytes(model: ModelSizes, choice: Choice) -> int:
    cell = model.cell(choice.kv)
    return cell.fixed * choice.cells + cell.spillable * choice.resident + model.stage(choice)


def _choices(model: ModelSizes, machine: Machine, options: PlanOptions) -> list[Choice]:
    """What was asked for, best first; more than one where format or residency is left open."""
    context = options.max_context or model.max_context
    cells = -(-context // PAGE_CELLS) * PAGE_CELLS * options.max_num_seqs
    gpu = machine.gpus[0] if machine.gpus else None
    prefill = min(options.prefill, LEAST) if options.prefill_auto else options.prefill
    made = []
    for kv in _formats(model, gpu, options, cells):
        for resident in _residents(model, gpu, options, cells, kv):
            choice = Choice(context, options.max_num_seqs, kv, resident, prefill)
            made += [replace(choice, staged=staged) for staged in _stages(model, options, choice)]
    return made


def _stages(model: ModelSizes, options: PlanOptions, choice: Choice) -> list[bool]:
    """Whether prompts may have a stage, best first."""
    if not model.stage(replace(choice, staged=True)):
        return [False]
    return {"on": [True], "off": [False]}.get(options.kv_prefetch, [True, False])


def _residents(model: ModelSizes, gpu: Gpu | None, options: PlanOptions, cells: int, kv: KVType) -> list[int]:
    """How many cells of spilling layers VRAM may hold, best first."""
    if gpu is None or not model.spills:
        return [cells]
    least = min(LEAST_RESIDENT, cells)
    if options.kv_resident and options.kv_resident < least:
        raise UsageError(f"--kv-resident is {options.kv_resident}; it must be at least {least}")
    if options.kv_resident:
        return [min(options.kv_resident, cells)]
    large = cells * model.cell(kv).spillable > gpu.free // AUTO_KV_SHARE
    wanted = [AUTO_RESIDENT, LEAST_RESIDENT] if large else [cells, AUTO_RESIDENT, LEAST_RESIDENT]
    return list(dict.fromkeys(min(n, cells) for n in wanted))


def _formats(model: ModelSizes, gpu: Gpu | None, options: PlanOptions, cells: int) -> list[KVType]:
    if options.kv != "auto":
        model.cell(options.kv)
        return [options.kv]
    eight: list[KVType] = ["int8"] if "int8" in model.cells else []
    crowded = gpu is not None and cells * model.cell("f16").nbytes > gpu.free // AUTO_KV_SHARE
    return [*eight, "f16"] if crowded and eight else ["f16", *eight]
