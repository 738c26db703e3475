"""A planted model small enough for the oracles: every part of the architecture, real block types."""

from dataclasses import replace

from strata.synth import FULL

SMALL = replace(
    FULL,
    num_layers=4,
    hidden_size=256,
    vocab_size=2048,
    num_heads=4,
    head_dim=64,
    rotary_dim=16,
    rope_sections=(3, 3, 2, 0),
    num_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=64,
    shared_intermediate_size=64,
    key_heads=2,
    value_heads=6,
    state_dim=32,
    stream_rank=32,
    index_heads=2,
    index_dim=32,
    index_budget=32,
    heads_per_ngram=4,
    ngram_width=32,
    ngram_base=101,
    ngram_eos=2000,
    image_token=None,
    eos=2001,
    bos=2000,
    draft=True,
)
