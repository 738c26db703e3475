"""Operators: shape contract, op record and NumPy reference each; the builder and the program."""

from strata.ops.attention import attention
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.elementwise import add, add_bias, silu_mul
from strata.ops.embed import embed
from strata.ops.gather_rows import gather_logit_rows
from strata.ops.kv_store import LayerKV, kv_store
from strata.ops.linear import linear
from strata.ops.program import Program
from strata.ops.publish import ResultsRing, publish
from strata.ops.rms_norm import rms_norm
from strata.ops.rope import RopeScaling, RopeStyle, rope, rope_frequencies, rope_table
from strata.ops.sample import SampleBuffers, sample
from strata.ops.sample_params import count_output, count_prompt, pack_bias, sample_params
from strata.ops.step import CHUNK_BLOCK, PAGE_CELLS, Form, StepBuffers

__all__ = [
    "CHUNK_BLOCK",
    "PAGE_CELLS",
    "Buffer",
    "Builder",
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
    "count_output",
    "count_prompt",
    "embed",
    "gather_logit_rows",
    "kv_store",
    "linear",
    "pack_bias",
    "publish",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_table",
    "sample",
    "sample_params",
    "silu_mul",
]
