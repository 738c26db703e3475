"""What a plan weighs: a model's sizes, the options that bear on memory, and one choice among settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from strata.config import EngineOptions
from strata.errors import UsageError
from strata.memory.kv import KVType
from strata.memory.slots import SizeClass, size_classes
from strata.ops import MAX_STEP_ROWS, PAGE_CELLS

GIB, MIB = 1 << 30, 1 << 20
BASE_BYTES = 112 * MIB  # Python, NumPy, the extension, the server: 101 MB measured
TOKEN_BYTES = 512  # of tokenizer a vocabulary entry: 235 to 430 measured
LAYER_BYTES = MIB  # op records of all row buckets
RAM_RESERVE = 2 * GIB  # at most; a tenth of small machines
MOST_ROWS = 16384  # of a prompt chunk, where nobody says otherwise
ROW_CACHE = 256 * MIB  # of n-gram rows, where the table is larger


@dataclass(frozen=True)
class CellBytes:
    """Bytes of one cell over all layers: keys and values that stay in VRAM, those that may spill, pooled index keys;
    and the keys and values of one layer that may spill."""

    fixed: int
    spillable: int = 0
    index: int = 0
    layer: int = 0

    @property
    def nbytes(self) -> int:
        """All of a cell."""
        return self.fixed + self.spillable + self.index


@dataclass(frozen=True)
class ModelSizes:
    """Bytes of a model, of its sequences and of its programs."""

    name: str
    dense: int  # weights that every step reads, without those below
    embedding: int  # rows looked up by token
    draft: int
    expert_bytes: tuple[int, ...]  # of one routed expert, by layer that has them
    num_experts: int  # a layer
    experts_per_token: int
    ngram: int  # the table
    cells: Mapping[KVType, CellBytes]  # formats that the heads allow
    slot: int  # states of a sequence besides its cells
    workspace: int  # step inputs, constants, outputs
    step_arena: int
    chunk_arena: int  # of a chunk of `chunk_rows`
    chunk_rows: int
    thread: int  # scratch of one worker
    vocab: int
    layers: int
    max_context: int
    step_scratch: int = 0  # of a GPU's steps, besides what ops hand each other
    chunk_scratch: int = 0  # the same of a chunk,
    own_scratch: int = 0  # and of short prompts, beyond what steps have
    loading: int = 0  # that weights pass through on their way to a GPU
    prompt_box: int = 0  # of RAM, where CPU workers take experts of prompts that a GPU lacks

    def cell(self, kv: KVType) -> CellBytes:
        """Bytes of a cell; UsageError where the heads do not allow the format."""
        if kv not in self.cells:
            raise UsageError(f"--kv {kv} does not fit the model's heads; {', '.join(self.cells)} do")
        return self.cells[kv]

    @property
    def spills(self) -> bool:
        """Whether some layers may leave cells in RAM."""
        return any(c.spillable for c in self.cells.values())

    @property
    def num_routed_experts(self) -> int:
        """Experts of all layers."""
        return len(self.expert_bytes) * self.num_experts

    def expert_classes(self) -> tuple[SizeClass, ...]:
        """Expert sizes with how many experts have each, largest first."""
        return size_classes(self.expert_bytes, self.num_experts)

    def least_ram_experts(self) -> int:
        """RAM without which a layer of a step could not be served from the SSD: its experts and the next layer's."""
        return 2 * self.experts_per_token * max(self.expert_bytes, default=0)

    def prompt_arena(self, rows: int) -> int:
        """What ops of a prompt chunk hand each other."""
        return -(-self.chunk_arena * rows // self.chunk_rows) if self.chunk_rows else 0

    def stage(self, choice: "Choice") -> int:
        """What chunks read one layer's cells of one sequence from, where all of them lie in RAM."""
        if not (choice.staged and choice.prefill and choice.resident < choice.cells):
            return 0
        return self.cell(choice.kv).layer * choice.sequence_pages * PAGE_CELLS

    @property
    def base(self) -> int:
        """Interpreter, libraries, tokenizer, records."""
        return BASE_BYTES + TOKEN_BYTES * self.vocab + LAYER_BYTES * self.layers


@dataclass(frozen=True)
class Choice:
    """Settings that decide what sequences need."""

    context: int  # tokens a sequence can hold
    sequences: int
    kv: KVType
    resident: int  # cells of spilling layers that VRAM holds
    prefill: int  # rows of a prompt chunk
    shared_pages: int = 0  # that all sequences share; 0: each can be as long as the context
    staged: bool = False  # whether prompts have a stage for cells that lie in RAM

    @property
    def sequence_pages(self) -> int:
        """Pages of one sequence of full length."""
        return -(-self.context // PAGE_CELLS)

    @property
    def pages(self) -> int:
        """Pages of the pool."""
        return self.shared_pages or self.sequence_pages * self.sequences

    @property
    def cells(self) -> int:
        """Cells of the pool."""
        return self.pages * PAGE_CELLS


@dataclass(frozen=True)
class PlanOptions:
    """The settings a plan looks at; bytes."""

    max_context: int = 0  # 0: what the model was made for, or less where that does not fit
    max_num_seqs: int = 1
    kv: KVType | Literal["auto"] = "auto"
    kv_resident: int = 0  # cells; 0: chosen
    kv_prefetch: str = "auto"  # whether prompts have a stage: on, off, auto: where it fits
    prefill: int = 512  # rows of a prompt chunk; with `prefill_auto` the most
    prefill_auto: bool = False
    link_rate: float = 0.0  # bytes a second between RAM and VRAM; 0: not known
    vram_reserve: int = 700 * MIB
    expert_slots: int | None = None  # None: as many as fit
    ram_budget: int | None = None  # of experts in RAM; None: as many as fit
    ngram_in_ram: bool = False  # the whole table; else as many rows as are kept

    @classmethod
    def of(cls, options: EngineOptions) -> Self:
        """From the engine's options."""
        slots = options.expert_cache
        return cls(
            max_context=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            kv=options.kv,  # type: ignore[arg-type]  # config checks it
            kv_resident=options.kv_resident,
            kv_prefetch=options.kv_prefetch,
            prefill=prompt_rows(options),
            prefill_auto=str(options.prefill).startswith("auto"),
            link_rate=options.link_limit_gbps * 1e9,
            vram_reserve=int(options.vram_reserve_mib * MIB),
            expert_slots=None if slots == "auto" else int(slots),
            ram_budget=int(options.ram_budget_gib * GIB) if options.ram_budget_gib else None,
            ngram_in_ram=options.ngram_table == "ram",
        )

    def ram_reserve(self, capacity: int) -> int:
        """RAM left alone."""
        return min(RAM_RESERVE, capacity // 10)


def prompt_rows(options: EngineOptions) -> int:
    """Rows of a prompt chunk at most, as the options say: auto, auto:MAX, N."""
    given = str(options.prefill).removeprefix("auto").removeprefix(":")
    return int(given) if given else MOST_ROWS


def chunk_rows(prefill: int, context: int) -> int:
    """Rows of the chunk program: never more than a context has, whole pages."""
    return min(prefill, -(-context // PAGE_CELLS) * PAGE_CELLS) // PAGE_CELLS * PAGE_CELLS


__all__ = ["MAX_STEP_ROWS", "CellBytes", "Choice", "ModelSizes", "PlanOptions", "chunk_rows", "prompt_rows"]
