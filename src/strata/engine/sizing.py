"""What a model takes, found by making its programs with a backend that only counts: sizes and allocation agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from strata import _native
from strata.backends.base import Arena, HostStamp
from strata.config import EngineOptions
from strata.engine.drafts.layer import LayerOptions, layer_options
from strata.engine.programs import Limits
from strata.engine.runner import Runner
from strata.engine.shares import cpu_share
from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import KVType, StatePool, StateShape
from strata.memory.expert_store import expert_layers
from strata.memory.plan_parts import OWN_PROMPT_ROWS
from strata.memory.plan_sizes import CellBytes, Choice, ModelSizes, chunk_rows, prompt_rows
from strata.models import Model
from strata.models.roles import Role, Roles, roles_of, split_block
from strata.ops import MAX_STEP_ROWS, PAGE_CELLS, Buffer, Form, Program
from strata.ops.buffers import NUMPY_DTYPES

_STACK = 2 << 20  # of a worker: attention's tiles lie on it, and allocators keep arenas a thread
_PLANE = 64  # bytes that planes of a blob are padded to (native/tiers/blob.h)
_SPLIT = 256  # cells of an attention split
_TILE_FLOATS = 128 << 10  # kSplitFloats of native/cpu/kernels/attention.cpp


@dataclass(frozen=True)
class Needs:
    """Bytes of a program: buffers that ops hand each other, and the most that one op takes besides."""

    arena: int
    scratch: int


_NOTHING = Needs(0, 0)


@dataclass(frozen=True)
class Measure:
    """What a device will take for a program, and to load weights."""

    needs: Callable[[Program, Arena], Needs]
    loading: int


@dataclass
class Grown:
    """Memory that one program after another holds in turn; a larger one takes anew, and nothing is given back."""

    largest: int = 0
    total: int = 0

    def hold(self, nbytes: int) -> None:
        """Room for so much."""
        if nbytes > self.largest:
            self.largest, self.total = nbytes, self.total + nbytes


@dataclass
class CountingBackend:
    """A backend without memory of its own: notes what a real one would be asked for."""

    name: str = "counting"
    runs_ahead: bool = False
    forms: tuple[Form, ...] = ("step", "chunk")
    measure: Measure | None = (
        None  # of the device that a plan is made for; None: programs have no scratch besides
    )
    step_arena: Grown = field(default_factory=Grown)
    step_scratch: Grown = field(default_factory=Grown)
    chunks: dict[int, Needs] = field(default_factory=dict)  # by rows
    buffers: dict[Buffer, None] = field(default_factory=dict)

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Nothing: programs tell."""

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> "CountingBackend":
        """Notes what it needs and every buffer that stays."""
        needs = Needs(program.arena_bytes, 0) if self.measure is None else self.measure.needs(program, arena)
        if arena == "chunk":
            self.chunks[program.bucket] = needs
        else:
            self.step_arena.hold(needs.arena)
            self.step_scratch.hold(needs.scratch)
        self.buffers |= {b: None for b in program.buffers() if b.role != "scratch"}
        return self

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Nothing is ever run."""
        raise NotImplementedError

    def prepare(self, begin: int = 0, end: int | None = None) -> None:
        """Nothing is ever run."""

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Nothing is ever run."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Nothing was started."""

    def check(self) -> None:
        """Nothing was reported."""

    def close(self) -> None:
        """Nothing."""

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """Nothing is ever run."""

    def stamp(self) -> HostStamp:
        """Now."""
        return HostStamp()

    def end_prompts(self) -> None:
        """Nothing is held for prompts."""

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """An array of the buffer's shape over a single value."""
        self.buffers[buffer] = None
        return np.broadcast_to(np.zeros(1, NUMPY_DTYPES[buffer.dtype]), buffer.shape)


def model_sizes(
    file: ModelFile,
    model: Model,
    options: EngineOptions,
    context: int,
    draft: ModelFile | None = None,
    measure: Measure | None = None,
) -> ModelSizes:
    """Sizes for steps and prompts of up to `context` tokens; no weight is touched. `measure`: of a GPU."""
    rows = chunk_rows(prompt_rows(options), context)
    layer = layer_options(file, model, options)
    limits = Limits(
        context, options.max_num_seqs, rows, (MAX_STEP_ROWS,), (OWN_PROMPT_ROWS,) if measure else ()
    )
    counted, state = _count(model, limits, layer, measure)
    wide = counted.chunks.get(rows, _NOTHING)
    own = {*state.paged(), *state.recurrent()}
    weights = _weights(file, draft)
    shape = model.state_shape()
    shared = measure is not None and rows > 0 and cpu_share(options) != 0
    return ModelSizes(
        name=f"{file.get('general.name', str, '') or Path(file.path).stem}",
        **weights,
        cells=_cells(shape),
        slot=state.slot_bytes,
        workspace=sum(b.nbytes for b in counted.buffers if b not in own),
        step_arena=counted.step_arena.total,
        step_scratch=counted.step_scratch.total,
        chunk_arena=wide.arena,
        chunk_scratch=wide.scratch,
        own_scratch=_beyond(counted.chunks.get(min(rows, OWN_PROMPT_ROWS), _NOTHING), counted.step_scratch),
        chunk_rows=rows,
        loading=measure.loading if measure else 0,
        thread=_thread_bytes(shape, context),
        prompt_box=_prompt_box(model, weights["experts_per_token"]) if shared else 0,
        vocab=model.config.vocab_size,
        max_context=model.config.rope.max_position,
    )


def at_rows(sizes: ModelSizes, model: Model, choice: Choice, measure: Measure) -> ModelSizes:
    """The sizes with what chunks of the chosen rows really take on a device."""
    rows = chunk_rows(choice.prefill, choice.context)
    if not rows or rows == sizes.chunk_rows:
        return sizes
    limits = Limits(choice.context, choice.sequences, rows, (MAX_STEP_ROWS,))
    counted, _ = _count(model, limits, LayerOptions(), measure, ("chunk",))
    wide = counted.chunks[rows]
    return replace(sizes, chunk_rows=rows, chunk_arena=wide.arena, chunk_scratch=wide.scratch)


def _beyond(needs: Needs, held: Grown) -> int:
    """Scratch that what is held has no room for."""
    return needs.scratch if needs.scratch > held.largest else 0


def _count(
    model: Model,
    limits: Limits,
    layer: LayerOptions,
    measure: Measure | None,
    forms: tuple[Form, ...] = ("step", "chunk"),
) -> tuple[CountingBackend, StatePool]:
    """`forms`: those that are measured."""
    if measure is not None:
        of = measure.needs
        measure = replace(measure, needs=lambda p, a: of(p, a) if a in forms else _NOTHING)
    backend = CountingBackend(measure=measure)
    pages = limits.max_num_seqs * -(-limits.max_model_len // PAGE_CELLS)
    state = StatePool.create(model.state_shape(), pages, limits.max_num_seqs, "f16")
    Runner(model, backend, state, limits, drafts=layer)
    return backend, state


def _cells(shape: StateShape) -> dict[KVType, CellBytes]:
    """Bytes of a cell in every format that the heads allow; layers with an indexer may spill."""
    sparse = 0 if shape.index is None else shape.index.layers
    found: dict[KVType, CellBytes] = {}
    for kv in get_args(KVType):
        try:
            pool = StatePool.create(shape, 1, 1, kv)
        except UnsupportedError:
            continue
        layers = max(shape.kv_layers, 1)
        each = pool.kv.nbytes // layers
        index = sum(p.pooled.nbytes for p in pool.index)
        found[kv] = CellBytes(
            each * (shape.kv_layers - sparse) // PAGE_CELLS,
            each * sparse // PAGE_CELLS,
            -(-index // PAGE_CELLS),
            each // PAGE_CELLS if sparse else 0,
        )
    return found


def _weights(file: ModelFile, draft: ModelFile | None) -> dict[str, Any]:
    """Bytes of weights by their part in a step, from the file's records."""
    drafts = file.get(f"{file.get('general.architecture', str)}.nextn_predict_layers", int, 0)
    blocks = file.get(f"{file.get('general.architecture', str)}.block_count", int, 0)
    roles = roles_of(file.tensors, blocks - drafts if drafts else None)
    by_role = {role: sum(t.nbytes for n, t in file.tensors.items() if roles.of(n) is role) for role in Role}
    experts, count = _experts(file, roles)
    tied = by_role[Role.OUTPUT_HEAD] == 0
    embedding = by_role[Role.EMBEDDING]
    apart = (Role.ROUTED_EXPERTS, Role.NGRAM_TABLE, Role.DRAFT_LAYER, Role.VISION, Role.EMBEDDING)
    table = sum(t.nbytes for n, t in file.tensors.items() if n.startswith("per_layer_token_embd."))
    own = by_role[Role.DRAFT_LAYER] if draft is file else 0
    architecture = file.get("general.architecture", str)
    return {
        "dense": sum(n for role, n in by_role.items() if role not in apart)
        + by_role[Role.NGRAM_TABLE] - table
        + (embedding if tied else 0),
        "embedding": 0 if tied else embedding,
        "draft": own if draft is None or draft is file else sum(t.nbytes for t in draft.tensors.values()),
        "expert_bytes": tuple(experts),
        "num_experts": count,
        "experts_per_token": file.get(f"{architecture}.expert_used_count", int, 0) if experts else 0,
        "ngram": table,
        "layers": blocks,
    }  # fmt: skip


def _experts(file: ModelFile, roles: Roles) -> tuple[Sequence[int], int]:
    """Bytes of one expert by layer, and experts a layer."""
    layers: dict[int, int] = {}
    count = 0
    for name, tensor in file.tensors.items():
        block, _ = split_block(name)
        if roles.of(name) is Role.ROUTED_EXPERTS and block is not None and len(tensor.ne) == 3:
            count = tensor.ne[2]
            plane = -(-(tensor.nbytes // count) // _PLANE) * _PLANE
            layers[block] = layers.get(block, 0) + plane
    return [layers[block] for block in sorted(layers)], count


def _prompt_box(model: Model, k: int) -> int:
    """The mailbox of prompts' experts, and inner rows of those who compute them."""
    layers = expert_layers(model)
    if not layers:
        return 0
    count, _, hidden = layers[0].gate.shape
    inner = max(layer.gate.shape[1] for layer in layers)
    mapped, _, _ = _native.gpu_tier_sizes(OWN_PROMPT_ROWS, k, hidden, count)
    return mapped + OWN_PROMPT_ROWS * k * inner * 4


def _thread_bytes(shape: StateShape, context: int) -> int:
    """Scratch of one worker: its stack, sums of an attention tile over all splits, scores of a row's blocks."""
    splits = -(-context // _SPLIT)
    tile = max(_TILE_FLOATS, 16 * splits * (shape.head_dim + 2)) * 4
    blocks = 0 if shape.index is None else context // shape.index.ratio * 4
    return _STACK + tile + blocks
