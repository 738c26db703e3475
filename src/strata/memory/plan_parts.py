"""The parts of a tier: what each consumer takes, and the check that all of them fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.errors import MemoryLimitError
from strata.hw.machine import Machine
from strata.memory.plan_sizes import GIB, ROW_CACHE, Choice, ModelSizes
from strata.memory.slots import aligned
from strata.ops import MAX_STEP_ROWS, MAX_TAPS


@dataclass(frozen=True)
class Part:
    """One consumer. `pinned`: page-locked where a GPU reads it."""

    name: str
    nbytes: int
    pinned: bool = False


@dataclass(frozen=True)
class Tier:
    """A tier's consumers; the experts are the last part and the only elastic one. Capacity is what may be used."""

    name: str
    capacity: int
    reserve: int
    parts: tuple[Part, ...]

    @property
    def used(self) -> int:
        """Bytes of all parts."""
        return sum(p.nbytes for p in self.parts)

    @property
    def free(self) -> int:
        """Bytes that nobody has, the reserve besides."""
        return self.capacity - self.reserve - self.used

    def part(self, name: str) -> int:
        """Bytes of the part of that name; 0 where there is none."""
        return sum(p.nbytes for p in self.parts if p.name == name)


EXPERTS, STAGING = "experts", "staging"
GUESSED_PLACES = 16  # kMostAhead of native/include/strata/tiers_gpu.h


def fill(
    name: str,
    capacity: int,
    reserve: int,
    parts: Sequence[Part],
    prompt: int,
    experts: int,
    pinned: bool = False,
) -> Tier:
    """The tier with its prompt buffers and experts; MemoryLimitError where they exceed it."""
    own = [*parts, Part("prompt buffers", prompt), Part(EXPERTS, experts, pinned)]
    tier = Tier(name, capacity, reserve, tuple(p for p in own if p.nbytes or p.name == EXPERTS))
    if tier.free >= 0:
        return tier
    largest = sorted((p for p in tier.parts if p.nbytes), key=lambda p: -p.nbytes)
    listed = ", ".join(f"{p.name} {p.nbytes / GIB:.3g}" for p in largest)
    raise MemoryLimitError(
        f"the plan needs {(tier.used + reserve) / GIB:.3g} GiB of {name} and {capacity / GIB:.3g} GiB may be used "
        f"({listed}, reserve {reserve / GIB:.3g})"
    )


def staging_places(model: ModelSizes) -> int:
    """Places of the staging ring: all that a layer of the largest step can miss at once, and what is fetched on a guess
    for the next one. Between steps it is a cache of what was missed last."""
    return min(model.num_experts, MAX_STEP_ROWS * model.experts_per_token) + GUESSED_PLACES


def staging_bytes(model: ModelSizes) -> int:
    """Their bytes."""
    return staging_places(model) * aligned(max(model.expert_bytes, default=0))


def prompt_places(model: ModelSizes, rows: int) -> int:
    """Places of the ring of prompt chunks: all experts of a layer, which it may lack, and of the next one a quarter."""
    return model.num_experts * 5 // 4 if rows else 0


OWN_PROMPT_ROWS = (
    256  # of chunks whose buffers the expert cache does not lend: it stays as it is for short prompts
)


def prompt_ring(model: ModelSizes, rows: int) -> int:
    """Its bytes."""
    return prompt_places(model, rows) * aligned(max(model.expert_bytes, default=0))


def own_prompt_bytes(model: ModelSizes, choice: Choice) -> int:
    """What prompts keep where not every expert has a slot: the ring, and buffers of short prompts."""
    if not model.num_routed_experts:
        return 0
    arena = model.prompt_arena(min(choice.prefill, OWN_PROMPT_ROWS))
    return prompt_ring(model, choice.prefill) + arena + model.own_scratch


def vram_parts(model: ModelSizes, choice: Choice) -> tuple[list[Part], int]:
    """What lies in VRAM besides experts, and the bytes of a prompt's buffers beyond a step's."""
    cell = model.cell(choice.kv)
    resident = min(choice.resident, choice.cells)
    parts = [
        Part("dense weights", model.dense),
        Part("draft layer", model.draft),
        Part("KV", cell.fixed * choice.cells + cell.spillable * resident),
        Part("index keys", cell.index * choice.cells),
        Part("states", model.slot * (choice.sequences + MAX_TAPS)),
        Part("workspaces", model.workspace + model.step_arena + model.step_scratch + model.loading),
        Part(STAGING, staging_bytes(model)),
    ]
    scratch = model.chunk_scratch if choice.prefill else 0
    return parts, model.prompt_arena(choice.prefill) + scratch + model.stage(choice)


def ram_parts(
    model: ModelSizes, machine: Machine, choice: Choice, on_gpu: bool, ngram_in_ram: bool
) -> list[Part]:
    """What lies in RAM besides experts."""
    cell = model.cell(choice.kv)
    common = [
        Part("base", model.base),
        Part("embedding", model.embedding, pinned=True),
        Part("n-gram rows", model.ngram if ngram_in_ram else min(model.ngram, ROW_CACHE), pinned=True),
        Part("thread scratch", model.thread * machine.threads),
    ]
    if on_gpu:
        spilled = cell.spillable * choice.cells if choice.resident < choice.cells else 0
        return [*common, Part("KV copy", spilled, pinned=True)]
    return [
        *common,
        Part("dense weights", model.dense),
        Part("draft layer", model.draft),
        Part("KV", (cell.fixed + cell.spillable) * choice.cells),
        Part("index keys", cell.index * choice.cells),
        Part("states", model.slot * (choice.sequences + MAX_TAPS)),
        Part("workspaces", model.workspace + model.step_arena),
        Part("prompt buffers", model.prompt_arena(choice.prefill)),
    ]
