// delta_chunk: makes the committed rows state, then takes whole blocks of 64 rows at positions that are multiples of 64
// (docs/contract.md); taps at such positions write the state to a slot.
// ptr: as delta_rule, then tap_positions int32 [4], tap_slots int32 [4]; dim: see delta.h.
#include "cpu/kernels/delta.h"
#include "cpu/kernels/softmax.h"

namespace strata::STRATA_LEVEL {

constexpr int kColumns = kRowValues;  // value columns taken together

// What all columns of a block share; [j][i] is about row i and an earlier row j. Then the columns at work, by key and by
// row: their state, what the state does not yet explain of the values, and the outputs.
struct Block {
  alignas(64) float kk[kChunkBlock][kChunkBlock], qk[kChunkBlock][kChunkBlock];
  float since[kChunkBlock], left[kChunkBlock], decay;
  DeltaRow rows[kChunkBlock];
  alignas(64) float s[kMaxKeyDim][kColumns];
  alignas(64) float x[kChunkBlock][kColumns], out[kChunkBlock][kColumns];
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

static void load_columns(const Delta& delta, const float* state, int64_t columns, Block& b) {
  for (int64_t k = 0; k < delta.key_dim; ++k) {
    for (int64_t v = 0; v < columns; ++v) b.s[k][v] = state[v * delta.key_dim + k];
    for (int64_t v = columns; v < kColumns; ++v) b.s[k][v] = 0.0f;
  }
}

static void store_columns(const Delta& delta, const Block& b, int64_t columns, float* state) {
  for (int64_t v = 0; v < columns; ++v)
    for (int64_t k = 0; k < delta.key_dim; ++k) state[v * delta.key_dim + k] = b.s[k][v];
}

// Row j's correction of the columns, and what it changes in later rows, in outputs and in the state.
static void apply_row(const Delta& delta, Block& b, int j) {
  alignas(64) float d[kColumns], kept[kColumns];
  for (int v = 0; v < kColumns; ++v) d[v] = b.rows[j].beta * b.x[j][v];
  for (int v = 0; v < kColumns; ++v) kept[v] = b.left[j] * d[v];
  for (int i = j + 1; i < kChunkBlock; ++i)
    for (int v = 0; v < kColumns; ++v) b.x[i][v] = fma32(-b.kk[j][i], d[v], b.x[i][v]);
  for (int i = j; i < kChunkBlock; ++i)
    for (int v = 0; v < kColumns; ++v) b.out[i][v] = fma32(b.qk[j][i], d[v], b.out[i][v]);
  for (int64_t k = 0; k < delta.key_dim; ++k)
    for (int v = 0; v < kColumns; ++v) b.s[k][v] = fma32(kept[v], b.rows[j].k[k], b.s[k][v]);
}

// Columns [v, v + columns) of the head: state to the end of the block, outputs in b.out.
static void run_columns(const Delta& delta, float* state, int64_t v, int64_t columns, Block& b) {
  load_columns(delta, state + v * delta.key_dim, columns, b);
  for (int i = 0; i < kChunkBlock; ++i) {
    alignas(64) float read[kColumns];
    lanes_of_rows(b.rows[i].k, b.s[0], 0, delta.key_dim, read);
    for (int64_t c = 0; c < kColumns; ++c)
      b.x[i][c] = fma32(-b.since[i], read[c], c < columns ? b.rows[i].v[v + c] : 0.0f);
    lanes_of_rows(b.rows[i].q, b.s[0], 0, delta.key_dim, read);
    for (int c = 0; c < kColumns; ++c) b.out[i][c] = b.since[i] * read[c];
  }
  for (int64_t k = 0; k < delta.key_dim; ++k)
    for (int c = 0; c < kColumns; ++c) b.s[k][c] = b.decay * b.s[k][c];
  for (int j = 0; j < kChunkBlock; ++j) apply_row(delta, b, j);
  store_columns(delta, b, columns, state + v * delta.key_dim);
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

// A block of rows, from row `at` of the group on.
static void run_block(const Delta& delta, const Group& g, int64_t h, int64_t at, Block& b) {
  const Op& op = delta.op;
  const float *qk = op.at<const float>(6), *mixed = op.at<const float>(7), *gates = op.at<const float>(8);
  for (int i = 0; i < kChunkBlock; ++i) b.rows[i] = step_row(delta, g, h, at + i, qk, mixed, gates);
  prepare(delta, b);
  for (int64_t v = 0; v < delta.value_dim; v += kColumns) {
    const int64_t columns = delta.value_dim - v < kColumns ? delta.value_dim - v : kColumns;
    run_columns(delta, delta.state(g.sequence, h), v, columns, b);
    for (int i = 0; i < kChunkBlock; ++i)
      memcpy(op.at<float>(9) + (g.row + at + i) * delta.value_width + h * delta.value_dim + v, b.out[i],
             static_cast<size_t>(columns) * sizeof(float));
  }
}

static thread_local Block block;

void delta_chunk(const Op& op, int thread, int threads) {
  const Delta delta{op};
  each_unit(delta, thread, threads, [&](const Group& g, int64_t h) {
    if (g.rows % kChunkBlock != 0 || g.position % kChunkBlock != 0) return op.fault(kFaultRange);
    alignas(64) float s[kMaxKeyDim];
    const int64_t n = committed_rows(delta, g, h, block.rows);
    for (int64_t v = 0; v < delta.value_dim; ++v) settle_column(delta, g, h, v, block.rows, n, s);
    for (int64_t at = 0; at < g.rows; at += kChunkBlock) {
      run_block(delta, g, h, at, block);
      write_taps(delta, g, h, g.position + at + kChunkBlock);
    }
  });
}

}  // namespace strata::STRATA_LEVEL
