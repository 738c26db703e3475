"""Lowering rules: for each op, the native kernel's name, addresses, sizes and constants, in the kernel's order."""

from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

from strata.ops.attention import Attention
from strata.ops.buffers import Buffer, Weight
from strata.ops.combine import Combine, GatedAdd
from strata.ops.elementwise import Add, AddBias, GeluMul, Scale, SiluMul
from strata.ops.embed import Embed
from strata.ops.expert_groups import GroupByExpert
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.gather_rows import GatherRows
from strata.ops.hadamard import Hadamard
from strata.ops.kv_fetch import KvFetch
from strata.ops.kv_store import KvStore, cell_values
from strata.ops.linear import LinearF, LinearQ
from strata.ops.op import Op
from strata.ops.publish import Publish
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm
from strata.ops.rope import Rope
from strata.ops.router import Router
from strata.ops.sample import Sample
from strata.ops.sparse_attention import SparseAttention

KV_TYPES = {"f32": 0, "f16": 1, "i8": 2, "u8": 3}


class Record(NamedTuple):
    """A native op record (native/cpu/program.h) before it is added."""

    kernel: str
    ptrs: list[int]
    dims: list[int]
    scalars: list[float]


class Addresses(NamedTuple):
    """Where things are: a buffer's address, a q8 buffer's three planes, a weight's bytes, a stack's address table."""

    buffer: Callable[[Buffer], int]
    planes: Callable[[Buffer], tuple[int, int, int]]
    weight: Callable[[Weight], int]
    experts: Callable[[Weight], int]  # of uint64 [num_experts], each the address of one expert's bytes

    def optional(self, buffer: Buffer | None) -> int:
        """Address of a buffer, 0 for none."""
        return 0 if buffer is None else self.buffer(buffer)

    def live(self, buffer: Buffer) -> int:
        """Address of the buffer's live-row count."""
        assert buffer.live is not None, f"{buffer} has no live-row count"
        return self.buffer(buffer.live)

    def maybe(self, weight: Weight | None) -> int:
        """The weight's address; 0 for none."""
        return 0 if weight is None else self.weight(weight)

    def forms(self, floats: Buffer | None, q8: Buffer | None) -> list[int]:
        """Addresses of float rows and of the three planes of quantised ones; 0 for the form that is absent."""
        planes = (0, 0, 0) if q8 is None else self.planes(q8)
        return [0 if floats is None else self.buffer(floats), *planes]


def kv_types(op: KvStore | KvFetch | Attention | SparseAttention) -> tuple[int, int]:
    """Formats of the key and value pools, as native/cpu/kernels/kv.h numbers them."""
    return KV_TYPES[op.k_pool.dtype], KV_TYPES[op.v_pool.dtype]


@singledispatch
def lower(op: Op, at: Addresses) -> Record:
    """The native record of an op."""
    raise NotImplementedError(f"no CPU kernel for op {op.kind}")


@lower.register
def _(op: Embed, at: Addresses) -> Record:
    vocab, hidden = op.weight.shape
    ptrs = [at.buffer(op.tokens), at.live(op.out), at.weight(op.weight), at.buffer(op.out)]
    return Record("embed", ptrs, [op.weight.format.type_id, hidden, vocab], [])


@lower.register
def _(op: RmsNorm, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.weight(op.weight), at.buffer(op.out)]
    width = op.weight.shape[-1]
    return Record("rms_norm", ptrs, [width, op.x.shape[-1] // width], [op.eps])


@lower.register
def _(op: Quantize, at: Addresses) -> Record:
    return Record("quantize", [at.live(op.x), at.buffer(op.x), *at.planes(op.out)], [op.x.shape[-1]], [])


@lower.register
def _(op: LinearQ, at: Addresses) -> Record:
    n, k = op.weight.shape
    ptrs = [at.live(op.out), *at.planes(op.x), at.weight(op.weight), at.buffer(op.out)]
    return Record("linear_q", ptrs, [op.weight.format.type_id, k, n], [])


@lower.register
def _(op: LinearF, at: Addresses) -> Record:
    n, k = op.weight.shape
    ptrs = [at.live(op.out), at.buffer(op.x), at.weight(op.weight), at.buffer(op.out)]
    return Record("linear_f", ptrs, [op.weight.format.type_id, k, n], [])


@lower.register
def _(op: Add, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.a), at.buffer(op.b), at.buffer(op.out)]
    return Record("add", ptrs, [op.out.shape[-1]], [])


@lower.register
def _(op: AddBias, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.weight(op.bias), at.buffer(op.out)]
    return Record("add_bias", ptrs, [op.out.shape[-1]], [])


@lower.register
def _(op: SiluMul, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.gate), at.buffer(op.up), at.buffer(op.out)]
    return Record("silu_mul", ptrs, [op.out.shape[-1]], [])


@lower.register
def _(op: GeluMul, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.gate), at.buffer(op.up), at.buffer(op.out)]
    return Record("gelu_mul", ptrs, [op.out.shape[-1]], [])


@lower.register
def _(op: Scale, at: Addresses) -> Record:
    return Record(
        "scale", [at.live(op.out), at.buffer(op.x), at.buffer(op.out)], [op.out.shape[-1]], [op.factor]
    )


@lower.register
def _(op: GatherRows, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.index), at.buffer(op.x), at.buffer(op.out)]
    return Record("gather_rows", ptrs, [op.out.shape[-1]], [])


@lower.register
def _(op: Rope, at: Addresses) -> Record:
    heads = op.x.shape[-1] // op.head_dim
    ptrs = [at.live(op.out), *map(at.buffer, (op.positions, op.table, op.x, op.out))]
    return Record("rope", ptrs, [heads, op.head_dim, op.rotary_dim, int(op.style), op.table.shape[0]], [])


@lower.register
def _(op: Hadamard, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1], op.group], [op.group**-0.5])


@lower.register
def _(op: KvStore, at: Addresses) -> Record:
    num_pages, kv_heads, *_ = op.k_pool.shape
    buffers = (op.positions, op.sequences, op.page_table, op.k, op.v, op.k_pool, op.v_pool)
    dims = [kv_heads, cell_values(op.k_pool), op.page_table.shape[1], *kv_types(op), num_pages]
    scales = [at.optional(op.k_scales), at.optional(op.v_scales)]
    return Record("kv_store", [at.live(op.k), *map(at.buffer, buffers), *scales], dims, [])


@lower.register
def _(op: Attention, at: Addresses) -> Record:
    num_pages, kv_heads, *_ = op.k_pool.shape
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.k_pool, op.v_pool, op.out)
    pages, head_dim = op.page_table.shape[1], cell_values(op.k_pool)
    dims = [op.heads, kv_heads, head_dim, pages, *kv_types(op), op.window, num_pages]
    scales = [at.optional(op.k_scales), at.optional(op.v_scales)]
    return Record("attention", [at.live(op.q), *map(at.buffer, buffers), *scales], dims, [op.scale])


@lower.register
def _(op: Publish, at: Addresses) -> Record:
    ptrs = [at.live(op.ids), *map(at.buffer, (op.step, op.ids, op.logprobs, op.ring))]
    return Record("publish", ptrs, [*op.ring.shape], [])


@lower.register
def _(op: Sample, at: Addresses) -> Record:
    buffers = (op.logits, op.positions, op.params, op.counts, op.masks, op.bias_ids, op.bias_values)
    ptrs = [at.live(op.out_ids), *map(at.buffer, (*buffers, op.out_ids, op.out_logprob))]
    return Record("sample", ptrs, [op.logits.shape[-1]], [])


@lower.register
def _(op: Router, at: Addresses) -> Record:
    ptrs = [at.live(op.logits), *map(at.buffer, (op.logits, op.topk_ids, op.topk_weights))]
    return Record("router", ptrs, [op.logits.shape[-1], op.topk_ids.shape[-1], int(op.renormalise)], [])


@lower.register
def _(op: GroupByExpert, at: Addresses) -> Record:
    ptrs = [at.live(op.topk_ids), *map(at.buffer, (op.topk_ids, op.pairs, op.offsets))]
    return Record("group_by_expert", ptrs, [op.topk_ids.shape[-1], op.offsets.shape[0] - 1], [])


@lower.register
def _(op: ExpertGateUp, at: Addresses) -> Record:
    experts, n, hidden = op.gate.shape
    out = at.planes(op.out) if op.out.dtype == "q8" else (at.buffer(op.out), 0, 0)
    ptrs = [at.buffer(op.pairs), at.buffer(op.offsets), *at.forms(op.x, op.q8)]
    ptrs += [at.experts(op.gate), at.experts(op.up), at.maybe(op.gate_scale), at.maybe(op.up_scale), *out]
    types = [op.gate.format.type_id, op.up.format.type_id]
    return Record("expert_gate_up", ptrs, [*types, hidden, n, experts, op.k], [])


@lower.register
def _(op: ExpertDown, at: Addresses) -> Record:
    experts, n, k = op.weight.shape
    forms = at.forms(None, op.x) if op.x.dtype == "q8" else at.forms(op.x, None)
    ptrs = [at.buffer(op.pairs), at.buffer(op.offsets), *forms]
    ptrs += [at.experts(op.weight), at.maybe(op.scale), at.buffer(op.out)]
    return Record("expert_down", ptrs, [op.weight.format.type_id, k, n, experts], [])


@lower.register
def _(op: Combine, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.expert_rows, op.topk_weights, op.out))]
    return Record("combine", ptrs, [op.out.shape[-1], op.topk_weights.shape[-1]], [])


@lower.register
def _(op: GatedAdd, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.x, op.y, op.gate, op.out))]
    return Record("gated_add", ptrs, [op.out.shape[-1]], [])
