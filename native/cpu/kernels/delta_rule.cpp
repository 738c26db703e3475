// delta_settle: makes the committed rows state; each row names a sequence and its next position.
// delta_rule: the same, then the step's rows from that state, which stays as it is; their inputs become pending.
// ptr: see delta.h; delta_rule also qk [rows, 2 * key_heads * key_dim], mixed [rows, that + value_heads * value_dim],
// gates [rows, 2 * value_heads], out [rows, value_heads * value_dim]; dim: see delta.h.
#include "cpu/kernels/delta.h"

namespace strata::STRATA_LEVEL {

void delta_settle(const Op& op, int thread, int threads) {
  const Delta delta{op};
  each_unit(delta, thread, threads, [&](const Group& g, int64_t h) {
    DeltaRow rows[kRingRows];
    alignas(64) float s[kMaxKeyDim];
    const int64_t n = committed_rows(delta, g, h, rows);
    for (int64_t v = 0; v < delta.value_dim; ++v) settle_column(delta, g, h, v, rows, n, s);
  });
}

// The head's part of the pending rows; keys are written by the first value head that uses them.
static void keep_rows(const Delta& delta, const Group& g, int64_t h, const DeltaRow* rows) {
  const int64_t key_head = delta.key_head(h), ratio = delta.heads / delta.key_heads;
  const bool owner = delta.op.dim[4] != 0 ? h < delta.key_heads : h % ratio == 0;
  for (int64_t r = 0; r < g.rows; ++r) {
    float* to = delta.pending(g.sequence, g.position + r);
    const size_t values = static_cast<size_t>(delta.value_dim) * sizeof(float);
    if (owner)
      memcpy(to + key_head * delta.key_dim, rows[r].k, static_cast<size_t>(delta.key_dim) * sizeof(float));
    memcpy(to + delta.key_width + h * delta.value_dim, rows[r].v, values);
    float* gates = to + delta.key_width + delta.value_width;
    gates[h] = rows[r].beta;
    gates[delta.heads + h] = rows[r].g;
  }
}

void delta_rule(const Op& op, int thread, int threads) {
  const Delta delta{op};
  const float *qk = op.at<const float>(6), *mixed = op.at<const float>(7), *gates = op.at<const float>(8);
  each_unit(delta, thread, threads, [&](const Group& g, int64_t h) {
    DeltaRow committed[kRingRows], rows[kRingRows];
    alignas(64) float s[kMaxKeyDim];
    const int64_t n = committed_rows(delta, g, h, committed);
    if (n + g.rows > kRingRows) return op.fault(kFaultRange);
    for (int64_t r = 0; r < g.rows; ++r) rows[r] = step_row(delta, g, h, r, qk, mixed, gates);
    for (int64_t v = 0; v < delta.value_dim; ++v) {
      settle_column(delta, g, h, v, committed, n, s);
      for (int64_t r = 0; r < g.rows; ++r) {
        delta_step(rows[r], rows[r].v[v], delta.key_dim, s);
        op.at<float>(9)[(g.row + r) * delta.value_width + h * delta.value_dim + v] =
            lane_dot(s, rows[r].q, delta.key_dim);
      }
    }
    keep_rows(delta, g, h, rows);
  });
}

}  // namespace strata::STRATA_LEVEL
