// ngram_rows: table rows of a token's n-grams (ops/ngram.py has the hash); tokens before the step lie in a ring.
// ptr: num_rows, positions int32, sequences int32, tap_positions int32 [4], tap_slots int32 [4], tokens int32,
// multipliers uint64 [size], sizes uint64 [heads], offsets uint64 [heads], history int32 [slots, 64], out int32 [rows,
// heads]; dim: size (at most 8), heads, eos, slots, tapped.
// table_rows: several decoded rows of a table side by side.
// ptr: num_rows, index int32 [rows, n], weight [rows of the table, width], out [rows, n * width]; dim: type_id, width,
// rows of the table, n.
// ngram_gate: per stream sigmoid(sign(s) sqrt(max(|s|, 1e-6))) * value, s = key . query * scale.
// ptr: num_rows, key [rows, streams * width], query, value [rows, width], out; dim: width, streams; scalar: scale.
#include "cpu/kernels/groups.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

static constexpr int kMaxSize = 8;

struct Ngrams {
  const Op& op;
  const int64_t size = op.dim[0], heads = op.dim[1], eos = op.dim[2], slots = op.dim[3];
  const int32_t* tokens = op.at<const int32_t>(5);

  int32_t* history(int64_t slot, int64_t position) const {
    return op.at<int32_t>(9) + slot * kRingRows + ring_row(position);
  }
  int64_t token(const Group& g, int64_t position) const {
    if (position < 0) return eos;
    return position >= g.position ? tokens[g.row + position - g.position] : *history(g.sequence, position);
  }

  void hash(const Group& g, int64_t r) const {
    const uint64_t *multipliers = op.at<const uint64_t>(6), *sizes = op.at<const uint64_t>(7);
    const int64_t per_order = heads / (size - 1);
    int32_t* out = op.at<int32_t>(10) + (g.row + r) * heads;
    uint64_t mixed = static_cast<uint64_t>(static_cast<int64_t>(tokens[g.row + r])) * multipliers[0];
    bool cut = false;
    for (int64_t back = 1; back < size; ++back) {
      const int64_t older = token(g, g.position + r - back);
      cut = cut || older == eos;
      mixed ^= static_cast<uint64_t>(cut ? eos : older) * multipliers[back];
      for (int64_t i = (back - 1) * per_order; i < back * per_order; ++i)
        out[i] = static_cast<int32_t>(mixed % sizes[i] + op.at<const uint64_t>(8)[i]);
    }
  }

  void put(const Group& g, int64_t slot, int64_t first, int64_t last) const {
    for (int64_t p = first < 0 ? 0 : first; p < last; ++p) *history(slot, p) = static_cast<int32_t>(token(g, p));
  }

  void run(const Group& g) const {
    for (int64_t r = 0; r < g.rows; ++r) hash(g, r);
    for (int i = 0; op.dim[4] != 0 && i < kMaxTaps; ++i) {
      const int64_t slot = tap_slot(g, op.at<const int32_t>(3), op.at<const int32_t>(4), i);
      const int64_t position = op.at<const int32_t>(3)[i];
      if (slot >= slots) op.fault(kFaultRange);
      if (slot >= 0 && slot < slots) put(g, slot, position - (size - 1), position);
    }
    put(g, g.sequence, g.position + (g.rows > kRingRows ? g.rows - kRingRows : 0), g.position + g.rows);
  }
};

void ngram_rows(const Op& op, int thread, int threads) {
  const Ngrams ngrams{op};
  const int64_t live = live_rows(op, 0);
  if (ngrams.size > kMaxSize) return op.fault(kFaultRange);
  int64_t turn = 0;
  for (int64_t row = 0; row < live;) {
    const Group g = group_at(op.at<const int32_t>(1), op.at<const int32_t>(2), row, live, ngrams.slots);
    row += g.rows;
    if (g.sequence < 0) op.fault(kFaultRange);
    if (g.sequence >= 0 && turn++ % threads == thread) ngrams.run(g);
  }
}

template <QuantType T>
static void decode_rows(const Op& op, int thread, int threads) {
  using F = Format<T>;
  const int64_t blocks = op.dim[1] / F::values, n = op.dim[3];
  const Range units = part(live_rows(op, 0) * n, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t row = op.at<const int32_t>(1)[u];
    if (row < 0 || row >= op.dim[2]) {
      op.fault(kFaultRange);
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b)
      dequantize_block<T>(op.at<const uint8_t>(2) + (row * blocks + b) * F::bytes,
                          op.at<float>(3) + u * op.dim[1] + b * F::values);
  }
}

void table_rows(const Op& op, int thread, int threads) {
  with_format(static_cast<QuantType>(op.dim[0]), [&]<QuantType T>() { decode_rows<T>(op, thread, threads); });
}

void ngram_gate(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0], streams = op.dim[1];
  const Range units = part(live_rows(op, 0) * streams, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const float* value = op.at<const float>(3) + u / streams * width;
    const float s = lane_dot(op.at<const float>(1) + u * width, op.at<const float>(2) + u * width, width) * op.scalar[0];
    const float magnitude = s < 0.0f ? -s : s, root = sqrt32(magnitude > 1e-6f ? magnitude : 1e-6f);
    const float gate = sigmoid32(s > 0.0f ? root : s < 0.0f ? -root : 0.0f);
    float* out = op.at<float>(4) + u * width;
    for (int64_t i = 0; i < width; ++i) out[i] = gate * value[i];
  }
}

}  // namespace strata::STRATA_LEVEL
