// causal_conv: depthwise convolution over a sequence's rows, then silu; columns before the step lie in a ring by position.
// ptr: num_rows, positions int32, sequences int32, tap_positions int32 [4], tap_slots int32 [4], x [rows, channels],
// weight [channels, kernel], ring [slots, ring rows, channels], out [rows, channels].
// dim: channels, kernel (at most 8), dilation, slots, ring rows, tapped. Taps j = 0 .. kernel - 1 are summed in order by fma.
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

static constexpr int kMaxKernel = 8;
static constexpr int64_t kTile = 256;

struct Conv {
  const Op& op;
  const int64_t channels = op.dim[0], kernel = op.dim[1], dilation = op.dim[2], slots = op.dim[3],
                ring_rows = op.dim[4];
  const float *x = op.at<const float>(5), *weight = op.at<const float>(6);
  float *ring = op.at<float>(7), *out = op.at<float>(8);

  float* ring_at(int64_t slot, int64_t position) const {
    return ring + (slot * ring_rows + position % ring_rows) * channels;
  }

  // The column at `position`, or null before the sequence begins.
  const float* column(const Group& g, int64_t position) const {
    if (position < 0) return nullptr;
    return position >= g.position ? x + (g.row + position - g.position) * channels : ring_at(g.sequence, position);
  }

  void convolve(const Group& g, int64_t r, int64_t begin, int64_t end) const {
    alignas(64) float y[kTile] = {}, w[kTile];
    for (int64_t j = 0; j < kernel; ++j) {
      const float* from = column(g, g.position + r - (kernel - 1 - j) * dilation);
      for (int64_t i = begin; i < end; ++i) w[i - begin] = weight[i * kernel + j];
      if (from)
        for (int64_t i = begin; i < end; ++i) y[i - begin] = fma32(w[i - begin], from[i], y[i - begin]);
      else
        for (int64_t i = begin; i < end; ++i) y[i - begin] = fma32(w[i - begin], 0.0f, y[i - begin]);
    }
    float* to = out + (g.row + r) * channels;
    for (int64_t i = begin; i < end; ++i) to[i] = silu32(y[i - begin]);
  }

  void put(const Group& g, int64_t slot, int64_t first, int64_t last, int64_t begin, int64_t end) const {
    for (int64_t p = first; p < last; ++p)
      if (const float* from = column(g, p))
        memcpy(ring_at(slot, p) + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(float));
  }

  void taps(const Group& g, int64_t begin, int64_t end) const {
    for (int i = 0; op.dim[5] != 0 && i < kMaxTaps; ++i) {
      const int64_t slot = tap_slot(g, op.at<const int32_t>(3), op.at<const int32_t>(4), i);
      const int64_t position = op.at<const int32_t>(3)[i];
      if (slot >= slots) op.fault(kFaultRange);
      if (slot >= 0 && slot < slots) put(g, slot, position - (kernel - 1) * dilation, position, begin, end);
    }
  }
};

void causal_conv(const Op& op, int thread, int threads) {
  const Conv c{op};
  if (c.kernel > kMaxKernel) return op.fault(kFaultRange);
  const int64_t live = live_rows(op, 0);
  const Range mine = part(c.channels, 64, thread, threads);
  for (int64_t row = 0; row < live;) {
    const Group g = group_at(op.at<const int32_t>(1), op.at<const int32_t>(2), row, live, c.slots);
    row += g.rows;
    if (g.sequence < 0) {
      op.fault(kFaultRange);
      continue;
    }
    for (int64_t begin = mine.begin; begin < mine.end; begin += kTile) {
      const int64_t end = begin + kTile < mine.end ? begin + kTile : mine.end;
      for (int64_t r = 0; r < g.rows; ++r) c.convolve(g, r, begin, end);
      c.taps(g, begin, end);
      const int64_t kept = g.rows < c.ring_rows ? g.rows : c.ring_rows;
      c.put(g, g.sequence, g.position + g.rows - kept, g.position + g.rows, begin, end);
    }
  }
}

}  // namespace strata::STRATA_LEVEL
