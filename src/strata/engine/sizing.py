"""What a model takes, found by making its programs with a backend that only counts: sizes and allocation agree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from strata.backends.base import Arena, HostStamp
from strata.config import EngineOptions
from strata.engine.drafts.layer import LayerOptions, layer_options
from strata.engine.programs import Limits
from strata.engine.runner import Runner
from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import KVType, StatePool, StateShape
from strata.memory.plan_sizes import CellBytes, ModelSizes, chunk_rows, prompt_rows
from strata.models import Model
from strata.models.roles import Role, Roles, roles_of, split_block
from strata.ops import MAX_STEP_ROWS, PAGE_CELLS, Buffer, Form, Program
from strata.ops.buffers import NUMPY_DTYPES

_STACK = 2 << 20  # of a worker: attention's tiles lie on it, and allocators keep arenas a thread
_PLANE = 64  # bytes that planes of a blob are padded to (native/tiers/blob.h)
_SPLIT = 256  # cells of an attention split
_TILE_FLOATS = 128 << 10  # kSplitFloats of native/cpu/kernels/attention.cpp


@dataclass
class CountingBackend:
    """A backend without memory of its own: notes what a real one would be asked for."""

    name: str = "counting"
    runs_ahead: bool = False
    forms: tuple[Form, ...] = ("step", "chunk")
    arenas: dict[Arena, int] = field(default_factory=dict)
    buffers: dict[Buffer, None] = field(default_factory=dict)

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Nothing: programs tell."""

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> "CountingBackend":
        """Notes the arena and every buffer that stays."""
        self.arenas[arena] = max(self.arenas.get(arena, 0), program.arena_bytes)
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

    def wait(self) -> None:
        """Nothing was started."""

    def check(self) -> None:
        """Nothing was reported."""

    def close(self) -> None:
        """Nothing."""

    def feed(self, ids: Buffer, tokens: Buffer) -> None:
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
    file: ModelFile, model: Model, options: EngineOptions, context: int, draft: ModelFile | None = None
) -> ModelSizes:
    """Sizes for steps and prompts of up to `context` tokens; no weight is touched."""
    rows = chunk_rows(prompt_rows(options), context)
    layer = layer_options(file, model, options)
    counted, state = _count(model, context, options.max_num_seqs, rows, layer)
    own = {*state.paged(), *state.recurrent()}
    weights = _weights(file, draft)
    shape = model.state_shape()
    return ModelSizes(
        name=f"{file.get('general.name', str, '') or Path(file.path).stem}",
        **weights,
        cells=_cells(shape),
        slot=state.slot_bytes,
        workspace=sum(b.nbytes for b in counted.buffers if b not in own),
        step_arena=counted.arenas["step"],
        chunk_arena=counted.arenas.get("chunk", 0),
        chunk_rows=rows,
        thread=_thread_bytes(shape, context),
        vocab=model.config.vocab_size,
        max_context=model.config.rope.max_position,
    )


def _count(
    model: Model, context: int, sequences: int, rows: int, layer: LayerOptions
) -> tuple[CountingBackend, StatePool]:
    backend = CountingBackend()
    pages = sequences * -(-context // PAGE_CELLS)
    state = StatePool.create(model.state_shape(), pages, sequences, "f16")
    limits = Limits(context, sequences, rows, step_buckets=(MAX_STEP_ROWS,))
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


def _thread_bytes(shape: StateShape, context: int) -> int:
    """Scratch of one worker: its stack, sums of an attention tile over all splits, scores of a row's blocks."""
    splits = -(-context // _SPLIT)
    tile = max(_TILE_FLOATS, 16 * splits * (shape.head_dim + 2)) * 4
    blocks = 0 if shape.index is None else context // shape.index.ratio * 4
    return _STACK + tile + blocks
