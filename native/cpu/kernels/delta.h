// The delta rule's state and pending rows (contract.h, "delta rule, step form"; docs/contract.md). A unit is one value
// head of one sequence.
#pragma once
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

constexpr int kMaxKeyDim = 256;

// ptr 0 .. 4 of every delta kernel: num_rows, positions int32, sequences int32, commits int32 [sequences], state [slots,
// value_heads, value_dim, key_dim]; ptr 5: pending [slots, 64, width] with rows of keys, values, beta, g.
// dim 0 .. 5: key_heads, value_heads, key_dim, value_dim, tiled, slots.
struct Delta {
  const Op& op;
  const int64_t key_heads = op.dim[0], heads = op.dim[1], key_dim = op.dim[2], value_dim = op.dim[3], slots = op.dim[5];
  const int64_t key_width = key_heads * key_dim, value_width = heads * value_dim;
  const int64_t pending_width = key_width + value_width + 2 * heads;

  int64_t key_head(int64_t h) const { return op.dim[4] != 0 ? h % key_heads : h / (heads / key_heads); }
  float* state(int64_t slot, int64_t h) const {
    return op.at<float>(4) + (slot * heads + h) * value_dim * key_dim;
  }
  float* pending(int64_t slot, int64_t position) const {
    return op.at<float>(5) + (slot * kRingRows + ring_row(position)) * pending_width;
  }
  // Committed rows before the group, or -1 where their number cannot be right.
  int64_t committed(const Group& g) const {
    if (g.position == 0) return 0;
    const int64_t n = op.at<const int32_t>(3)[g.sequence];
    return n >= 0 && n <= kRingRows && n <= g.position ? n : -1;
  }
};

// One head's row as pointers and numbers.
struct DeltaRow {
  const float *k, *v, *q;
  float beta, g, decay;
};

// S after one row, for the column whose value is `value`.
STRATA_HD void delta_step(const DeltaRow& row, float value, int64_t key_dim, float* __restrict s) {
  for (int64_t i = 0; i < key_dim; ++i) s[i] = row.decay * s[i];
  const float d = delta_error(row.beta, value, lane_dot(s, row.k, key_dim));
  for (int64_t i = 0; i < key_dim; ++i) s[i] = fma32(row.k[i], d, s[i]);
}

STRATA_HD DeltaRow pending_row(const Delta& delta, const Group& g, int64_t h, int64_t position) {
  const float* at = delta.pending(g.sequence, position);
  const float* gates = at + delta.key_width + delta.value_width;
  return {at + delta.key_head(h) * delta.key_dim, at + delta.key_width + h * delta.value_dim, nullptr, gates[h],
          gates[delta.heads + h], exp32(gates[delta.heads + h])};
}

// Row r of the group; qk, mixed and gates as ops/delta_rule.py describes them.
STRATA_HD DeltaRow step_row(const Delta& delta, const Group& g, int64_t h, int64_t r, const float* qk,
                            const float* mixed, const float* gates) {
  const int64_t row = g.row + r, at = delta.key_head(h) * delta.key_dim;
  const float* q = qk + row * 2 * delta.key_width + at;
  const float* v = mixed + row * (2 * delta.key_width + delta.value_width) + 2 * delta.key_width + h * delta.value_dim;
  const float* gate = gates + row * 2 * delta.heads;
  return {q + delta.key_width, v, q, gate[h], gate[delta.heads + h], exp32(gate[delta.heads + h])};
}

// Calls f(group, head) for this thread's units whose group is valid.
template <class F>
STRATA_HD void each_unit(const Delta& delta, int thread, int threads, F f) {
  const Op& op = delta.op;
  const int64_t live = live_rows(op, 0);
  if (delta.key_dim > kMaxKeyDim) return op.fault(kFaultRange);
  int64_t turn = 0;
  for (int64_t row = 0; row < live;) {
    const Group g = group_at(op.at<const int32_t>(1), op.at<const int32_t>(2), row, live, delta.slots);
    row += g.rows;
    if (g.sequence < 0 || delta.committed(g) < 0) {
      op.fault(kFaultRange);
      continue;
    }
    for (int64_t h = 0; h < delta.heads; ++h)
      if (turn++ % threads == thread) f(g, h);
  }
}

// Column v of the state after the committed rows, stored: zero at position 0.
STRATA_HD void settle_column(const Delta& delta, const Group& g, int64_t h, int64_t v, const DeltaRow* rows, int64_t n,
                             float* __restrict s) {
  float* stored = delta.state(g.sequence, h) + v * delta.key_dim;
  for (int64_t i = 0; i < delta.key_dim; ++i) s[i] = g.position == 0 ? 0.0f : stored[i];
  for (int64_t t = 0; t < n; ++t) delta_step(rows[t], rows[t].v[v], delta.key_dim, s);
  memcpy(stored, s, static_cast<size_t>(delta.key_dim) * sizeof(float));
}

// The committed rows of a unit; returns how many.
STRATA_HD int64_t committed_rows(const Delta& delta, const Group& g, int64_t h, DeltaRow* rows) {
  const int64_t n = delta.committed(g);
  for (int64_t t = 0; t < n; ++t) rows[t] = pending_row(delta, g, h, g.position - n + t);
  return n;
}

}  // namespace strata::STRATA_LEVEL
