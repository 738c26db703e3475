// Every native kernel: name, then how many pointers, dims and scalars its op record carries. The kernel's own file
// says what they are.
#pragma once

#define STRATA_KERNELS(X)       \
  X(embed, 4, 3, 0)             \
  X(rms_norm, 4, 2, 1)          \
  X(quantize, 5, 1, 0)          \
  X(linear_q, 6, 3, 0)          \
  X(linear_f, 4, 3, 0)          \
  X(add, 4, 1, 0)               \
  X(add_bias, 4, 1, 0)          \
  X(silu_mul, 4, 1, 0)          \
  X(scale, 3, 1, 1)             \
  X(gather_rows, 4, 1, 0)       \
  X(rope, 5, 5, 0)              \
  X(kv_store, 10, 5, 0)         \
  X(attention, 10, 7, 1)        \
  X(publish, 5, 2, 0)           \
  X(sample, 10, 1, 0)           \
  X(router, 4, 3, 0)            \
  X(group_by_expert, 4, 2, 0)   \
  X(expert_gate_up, 13, 6, 0)   \
  X(expert_down, 9, 4, 0)       \
  X(combine, 4, 2, 0)           \
  X(gated_add, 5, 1, 0)         \
  X(grouped_norm, 4, 2, 1)      \
  X(stream_tile, 3, 2, 0)       \
  X(scaled_silu, 3, 2, 0)       \
  X(stream_mix, 4, 2, 0)        \
  X(stream_write, 5, 2, 0)      \
  X(head_norm_rope, 7, 5, 1)    \
  X(sigmoid_gate, 4, 4, 0)      \
  X(gated_norm, 5, 3, 1)        \
  X(causal_conv, 9, 5, 0)       \
  X(unit_heads, 3, 3, 1)        \
  X(delta_gates, 6, 2, 0)       \
  X(delta_settle, 6, 6, 0)      \
  X(delta_rule, 10, 6, 0)       \
  X(delta_chunk, 12, 6, 0)      \
  X(cell_positions, 6, 2, 0)    \
  X(index_keys, 11, 6, 1)       \
  X(block_scores, 7, 7, 0)      \
  X(select_blocks, 4, 3, 0)     \
  X(rank_blocks, 7, 7, 0)       \
  X(sparse_attention, 11, 8, 1) \
  X(ngram_rows, 11, 5, 0)       \
  X(table_rows, 4, 4, 0)        \
  X(ngram_gate, 5, 2, 1)        \
  X(copy_columns, 3, 5, 0)      \
  X(map_exp32, 2, 1, 0)         \
  X(map_log32, 2, 1, 0)         \
  X(map_softplus32, 2, 1, 0)    \
  X(map_sigmoid32, 2, 1, 0)     \
  X(map_silu32, 2, 1, 0)        \
  X(map_half_float, 2, 1, 0)    \
  X(map_float_half, 2, 1, 0)    \
  X(map_fma32, 4, 1, 0)
