"""Operators: shape contract, op record and NumPy reference each; the builder and the program."""

from strata.ops.attention import attention
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.combine import combine, gated_add
from strata.ops.elementwise import add, add_bias, silu_mul
from strata.ops.embed import embed
from strata.ops.expert_groups import group_by_expert
from strata.ops.experts import ExpertWeights, routed_experts
from strata.ops.gather_rows import gather_logit_rows
from strata.ops.kv_store import LayerKV, kv_store
from strata.ops.linear import linear
from strata.ops.program import Program
from strata.ops.publish import ResultsRing, publish
from strata.ops.rms_norm import head_norm, rms_norm
from strata.ops.rope import RopeScaling, RopeStyle, rope, rope_frequencies, rope_table
from strata.ops.router import router
from strata.ops.sample import SampleBuffers, sample
from strata.ops.sample_params import count_output, count_prompt, pack_bias, sample_params
from strata.ops.step import CHUNK_BLOCK, PAGE_CELLS, Form, StepBuffers

__all__ = [
    "CHUNK_BLOCK",
    "PAGE_CELLS",
    "Buffer",
    "Builder",
    "ExpertWeights",
    "Form",
    "LayerKV",
    "Program",
    "ResultsRing",
    "RopeScaling",
    "RopeStyle",
    "SampleBuffers",
    "StepBuffers",
    "Weight",
    "add",
    "add_bias",
    "attention",
    "combine",
    "count_output",
    "count_prompt",
    "embed",
    "gated_add",
    "gather_logit_rows",
    "group_by_expert",
    "head_norm",
    "kv_store",
    "linear",
    "pack_bias",
    "publish",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_table",
    "routed_experts",
    "router",
    "sample",
    "sample_params",
    "silu_mul",
]
