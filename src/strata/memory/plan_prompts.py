"""How many prompt tokens are read at a time: the size of chunk that reads prompts of several lengths soonest.

A chunk sends every expert that VRAM lacks once, while it computes: the larger it is, the fewer times, and the more
tokens an expert has. Its buffers lie where experts would, which are sent too, and again when the prompt is over.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import geometric_mean

from strata.errors import MemoryLimitError
from strata.hw.machine import Machine
from strata.memory.plan_place import Placement, place
from strata.memory.plan_sizes import ModelSizes, PlanOptions, chunk_rows

ROWS = (16384, 12288, 8192, 6144, 4096, 2048, 1024, 512)
LEAST = ROWS[-1]
PROMPTS = (2048, 8192, 32768)  # tokens of the prompts that are to be read soon; each counts alike
LINK = 50e9  # bytes a second, where no rate is given: a GPU on PCIe 5 x16
# Of computing, as an H200 has it (docs/measurements.md): bytes of a token's weights, times tokens, a second, and rows
# that a chunk costs besides its own, since few of them leave tiles of experts nearly empty.
_WEIGHTS, _LOST_ROWS = 52e12, 1500
_AS_GOOD = (
    1.03  # a smaller chunk that takes no longer than so many times the best leaves memory, and yields sooner
)


def with_chunk(placement: Placement, model: ModelSizes, machine: Machine, options: PlanOptions) -> Placement:
    """The placement with the chunk that reads soonest, where it was left open and there is a GPU."""
    if not options.prefill_auto or placement.vram is None:
        return placement
    found = [placement, *_larger(placement, model, machine, options)]
    link = options.link_rate or LINK
    seconds = [geometric_mean(reading_seconds(p, n, link) for n in PROMPTS) for p in found]
    near = [p for p, s in zip(found, seconds, strict=True) if s <= min(seconds) * _AS_GOOD]
    return min(near, key=lambda p: p.choice.prefill)


def _larger(
    placement: Placement, model: ModelSizes, machine: Machine, options: PlanOptions
) -> Iterator[Placement]:
    most = chunk_rows(options.prefill, placement.choice.context)
    for rows in {min(rows, most) for rows in ROWS} - {placement.choice.prefill}:
        try:
            made = place(model, machine, options, replace(placement.choice, prefill=rows))
        except MemoryLimitError:
            continue
        yield replace(made, notes=placement.notes)


def reading_seconds(placement: Placement, tokens: int, link: float) -> float:
    """Seconds that a prompt of so many tokens, or of the whole context, takes: computing and sending overlap."""
    model, choice = placement.model, placement.choice
    tokens = min(tokens, choice.context)
    chunks = -(-tokens // choice.prefill)
    experts = sum(model.expert_bytes)
    read = model.dense + experts * model.experts_per_token
    compute = (tokens + chunks * _LOST_ROWS) * read / _WEIGHTS
    missing = experts * model.num_experts - placement.slots.nbytes + placement.lent
    return max(compute, chunks * missing / link) + placement.lent / link
