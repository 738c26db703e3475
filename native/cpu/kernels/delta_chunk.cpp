// delta_chunk: makes the committed rows state, then takes whole blocks of 64 rows at positions that are multiples of 64
// (docs/contract.md); taps at such positions write the state to a slot.
// ptr: as delta_rule, then tap_positions int32 [4], tap_slots int32 [4]; dim: see delta.h.
#include "cpu/kernels/delta.h"

namespace strata::STRATA_LEVEL {

// What all columns of a block share; [j][i] is about row i and an earlier row j.
struct Block {
  alignas(64) float kk[kChunkBlock][kChunkBlock], qk[kChunkBlock][kChunkBlock];
  float since[kChunkBlock], left[kChunkBlock], decay;
  DeltaRow rows[kChunkBlock];
};

static void prepare(const Delta& delta, Block& b) {
  float log[kChunkBlock], total = 0.0f;
  for (int i = 0; i < kChunkBlock; ++i) log[i] = total += b.rows[i].g;
  for (int i = 0; i < kChunkBlock; ++i) {
    b.since[i] = exp32(log[i]);
    b.left[i] = exp32(total - log[i]);
    for (int j = 0; j <= i; ++j) {
      const float between = log[i] - log[j], decay = exp32(between < 0.0f ? between : 0.0f);
      b.kk[j][i] = lane_dot(b.rows[i].k, b.rows[j].k, delta.key_dim) * decay;
      b.qk[j][i] = lane_dot(b.rows[i].q, b.rows[j].k, delta.key_dim) * decay;
    }
  }
  b.decay = exp32(total);
}

// Column v: s is its state before the block, and after it.
static void run_column(const Delta& delta, const Block& b, int64_t v, float* __restrict s, float* __restrict out) {
  alignas(64) float x[kChunkBlock];
  for (int i = 0; i < kChunkBlock; ++i) {
    x[i] = fma32(-b.since[i], lane_dot(b.rows[i].k, s, delta.key_dim), b.rows[i].v[v]);
    out[i] = b.since[i] * lane_dot(b.rows[i].q, s, delta.key_dim);
  }
  for (int64_t i = 0; i < delta.key_dim; ++i) s[i] = b.decay * s[i];
  for (int j = 0; j < kChunkBlock; ++j) {
    const float d = b.rows[j].beta * x[j], kept = b.left[j] * d;
    for (int i = j + 1; i < kChunkBlock; ++i) x[i] = fma32(-b.kk[j][i], d, x[i]);
    for (int i = j; i < kChunkBlock; ++i) out[i] = fma32(b.qk[j][i], d, out[i]);
    for (int64_t i = 0; i < delta.key_dim; ++i) s[i] = fma32(kept, b.rows[j].k[i], s[i]);
  }
}

static void write_taps(const Delta& delta, const Group& g, int64_t h, int64_t position) {
  const Op& op = delta.op;
  for (int i = 0; i < kMaxTaps; ++i) {
    const int64_t slot = tap_slot(g, op.at<const int32_t>(10), op.at<const int32_t>(11), i);
    if (slot < 0 || op.at<const int32_t>(10)[i] != position) continue;
    if (slot >= delta.slots) return op.fault(kFaultRange);
    memcpy(delta.state(slot, h), delta.state(g.sequence, h),
           static_cast<size_t>(delta.value_dim * delta.key_dim) * sizeof(float));
  }
}

static thread_local Block block;

void delta_chunk(const Op& op, int thread, int threads) {
  const Delta delta{op};
  const float *qk = op.at<const float>(6), *mixed = op.at<const float>(7), *gates = op.at<const float>(8);
  each_unit(delta, thread, threads, [&](const Group& g, int64_t h) {
    if (g.rows % kChunkBlock != 0 || g.position % kChunkBlock != 0) return op.fault(kFaultRange);
    Block& b = block;
    alignas(64) float s[kMaxKeyDim], out[kChunkBlock];
    const int64_t n = committed_rows(delta, g, h, b.rows);
    for (int64_t v = 0; v < delta.value_dim; ++v) settle_column(delta, g, h, v, b.rows, n, s);
    for (int64_t at = 0; at < g.rows; at += kChunkBlock) {
      for (int i = 0; i < kChunkBlock; ++i) b.rows[i] = step_row(delta, g, h, at + i, qk, mixed, gates);
      prepare(delta, b);
      for (int64_t v = 0; v < delta.value_dim; ++v) {
        run_column(delta, b, v, delta.state(g.sequence, h) + v * delta.key_dim, out);
        for (int i = 0; i < kChunkBlock; ++i)
          op.at<float>(9)[(g.row + at + i) * delta.value_width + h * delta.value_dim + v] = out[i];
      }
      write_taps(delta, g, h, g.position + at + kChunkBlock);
    }
  });
}

}  // namespace strata::STRATA_LEVEL
