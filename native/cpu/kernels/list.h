// Every native kernel: name, then how many pointers, dims and scalars its op record carries. The kernel's own file
// says what they are.
#pragma once

#define STRATA_KERNELS(X)      \
  X(embed, 4, 3, 0)           \
  X(rms_norm, 4, 2, 1)        \
  X(quantize, 5, 1, 0)        \
  X(linear_q, 6, 3, 0)        \
  X(linear_f, 4, 3, 0)        \
  X(add, 4, 1, 0)             \
  X(add_bias, 4, 1, 0)        \
  X(silu_mul, 4, 1, 0)        \
  X(scale, 3, 1, 1)           \
  X(gather_rows, 4, 1, 0)     \
  X(rope, 5, 5, 0)            \
  X(kv_store, 8, 5, 0)        \
  X(attention, 8, 7, 1)       \
  X(publish, 5, 2, 0)         \
  X(sample, 10, 1, 0)         \
  X(router, 4, 3, 0)          \
  X(group_by_expert, 4, 2, 0) \
  X(expert_gate_up, 13, 6, 0) \
  X(expert_down, 9, 4, 0)     \
  X(combine, 4, 2, 0)         \
  X(gated_add, 5, 1, 0)       \
  X(map_exp32, 2, 1, 0)       \
  X(map_log32, 2, 1, 0)       \
  X(map_softplus32, 2, 1, 0)  \
  X(map_sigmoid32, 2, 1, 0)   \
  X(map_silu32, 2, 1, 0)      \
  X(map_half_float, 2, 1, 0)  \
  X(map_float_half, 2, 1, 0)  \
  X(map_fma32, 4, 1, 0)
