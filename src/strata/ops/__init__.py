"""Operators: shape contract, op record and NumPy reference each; the builder and the program."""

from strata.ops.attention import attention
from strata.ops.buffers import Buffer, DType, Weight
from strata.ops.builder import Builder
from strata.ops.combine import combine, gated_add
from strata.ops.conv import causal_conv
from strata.ops.copy_rows import concat, copy_columns, copy_rows
from strata.ops.count_tokens import CountBuffers, count_tokens
from strata.ops.delta_inputs import delta_gates, packed_delta_gates, unit_heads
from strata.ops.delta_rule import DeltaState, delta_rule, delta_settle
from strata.ops.elementwise import add, add_bias, gelu_mul, scale, silu_mul
from strata.ops.embed import embed
from strata.ops.expert_groups import group_by_expert
from strata.ops.experts import ExpertWeights, routed_experts
from strata.ops.gates import gated_norm, sigmoid_gate
from strata.ops.gather_rows import gather_logit_rows
from strata.ops.grouped_norm import grouped_norm
from strata.ops.hadamard import hadamard
from strata.ops.head_norm import Rotary, head_norm_rope, rotary_axes
from strata.ops.index_keys import IndexPool, cell_positions, index_keys
from strata.ops.kv_fetch import ResidentKV
from strata.ops.kv_store import KV_GROUP, LayerKV, kv_store
from strata.ops.linear import linear
from strata.ops.linear_some import linear_some
from strata.ops.ngram import NgramHash, ngram_gate, ngram_rows, table_rows
from strata.ops.pass_draft import MAX_DRAFTS, DraftResults, pass_draft
from strata.ops.program import Program
from strata.ops.publish import ResultsRing, publish
from strata.ops.recent_rows import keep_recent, recall_recent
from strata.ops.rms_norm import head_norm, rms_norm
from strata.ops.rope import RopeScaling, RopeStyle, rope, rope_frequencies, rope_table
from strata.ops.router import router
from strata.ops.sample import SampleBuffers, sample
from strata.ops.sample_params import count_output, count_prompt, pack_bias, sample_params
from strata.ops.select_blocks import select_blocks
from strata.ops.sparse_attention import sparse_attention
from strata.ops.step import CHUNK_BLOCK, MAX_STEP_ROWS, MAX_TAPS, PAGE_CELLS, RING_ROWS, Form, StepBuffers
from strata.ops.streams import scaled_silu, stream_mix, stream_tile, stream_write

__all__ = [
    "CHUNK_BLOCK",
    "KV_GROUP",
    "MAX_DRAFTS",
    "MAX_STEP_ROWS",
    "MAX_TAPS",
    "PAGE_CELLS",
    "RING_ROWS",
    "Buffer",
    "Builder",
    "CountBuffers",
    "DType",
    "DeltaState",
    "DraftResults",
    "ExpertWeights",
    "Form",
    "IndexPool",
    "LayerKV",
    "NgramHash",
    "Program",
    "ResidentKV",
    "ResultsRing",
    "RopeScaling",
    "RopeStyle",
    "Rotary",
    "SampleBuffers",
    "StepBuffers",
    "Weight",
    "add",
    "add_bias",
    "attention",
    "causal_conv",
    "cell_positions",
    "combine",
    "concat",
    "copy_columns",
    "copy_rows",
    "count_output",
    "count_prompt",
    "count_tokens",
    "delta_gates",
    "delta_rule",
    "delta_settle",
    "embed",
    "gated_add",
    "gated_norm",
    "gather_logit_rows",
    "gelu_mul",
    "group_by_expert",
    "grouped_norm",
    "hadamard",
    "head_norm",
    "head_norm_rope",
    "index_keys",
    "keep_recent",
    "kv_store",
    "linear",
    "linear_some",
    "ngram_gate",
    "ngram_rows",
    "pack_bias",
    "packed_delta_gates",
    "pass_draft",
    "publish",
    "recall_recent",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_table",
    "rotary_axes",
    "routed_experts",
    "router",
    "sample",
    "sample_params",
    "scale",
    "scaled_silu",
    "select_blocks",
    "sigmoid_gate",
    "silu_mul",
    "sparse_attention",
    "stream_mix",
    "stream_tile",
    "stream_write",
    "table_rows",
    "unit_heads",
]
