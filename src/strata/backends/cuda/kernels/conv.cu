// causal_conv: depthwise convolution over a sequence's rows, then silu; columns before the step lie in a ring by position.
#include "rows.cuh"

using namespace strata;

namespace {

struct Conv {
  StepRows rows;
  const float* x;  // [rows, channels]
  float* ring;     // [slots, ring_rows, channels]
  int channels, ring_rows;

  __device__ __forceinline__ float* kept(int slot, int position) const {
    return ring + (static_cast<size_t>(slot) * ring_rows + position % ring_rows) * channels;
  }
  // Channel c of the column `back` rows before row r; +0 before the sequence begins.
  __device__ __forceinline__ float column(int r, int back, int c) const {
    const int sequence = rows.sequences[r], position = rows.positions[r] - back;
    if (position < 0) return 0.0f;
    return rows.same(r - back, sequence) ? x[static_cast<size_t>(r - back) * channels + c] : kept(sequence, position)[c];
  }
};

}  // namespace

// A thread a channel. Grid (channels, rows): thread block row y takes rows y, y + gridDim.y, ..; the chunk form has one, so
// that a thread reads the old columns before it writes the new ones (a step's new ones lie apart from what is read).
extern "C" __global__ void causal_conv(const int* live, const int* positions, const int* sequences, const int* tap_positions,
                                       const int* tap_slots, const float* x, const float* weight, float* ring, float* out, int channels,
                                       int kernel, int dilation, int slots, int ring_rows, int tapped, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const Conv conv{{positions, sequences, *live, slots}, x, ring, channels, ring_rows};
  const StepRows& rows = conv.rows;
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  for (int r = blockIdx.y; r < rows.live; r += gridDim.y) {
    if (!rows.valid(r)) {
      report(faults, kFaultRange);
      continue;
    }
    float y = 0.0f;
    for (int j = 0; j < kernel; ++j) y = fma32(weight[c * kernel + j], conv.column(r, (kernel - 1 - j) * dilation, c), y);
    out[static_cast<size_t>(r) * channels + c] = silu32(y);
  }
  for (int r = blockIdx.y; r < rows.live; r += gridDim.y) {
    const int sequence = sequences[r], after = positions[r] + 1;
    if (!rows.valid(r)) continue;
    for (int i = 0; tapped && i < kMaxTaps; ++i) {
      if (tap_positions[i] != after || tap_positions[i] <= 0) continue;
      if (tap_slots[i] < 0 || tap_slots[i] >= slots) {
        report(faults, kFaultRange);
        continue;
      }
      for (int back = 0; back < (kernel - 1) * dilation && back < after; ++back)
        conv.kept(tap_slots[i], after - 1 - back)[c] = conv.column(r, back, c);
    }
  }
  for (int r = blockIdx.y; r < rows.live; r += gridDim.y)
    if (rows.valid(r) && !rows.same(r + ring_rows, sequences[r]))
      conv.kept(sequences[r], positions[r])[c] = x[static_cast<size_t>(r) * channels + c];
}
