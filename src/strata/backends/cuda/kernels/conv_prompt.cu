// The convolution of a prompt's rows, blocks of 64 side by side, and with it keys and queries of unit length. Macros: STRATA_HEAD
// (channels a warp has, a multiple of 32), STRATA_KERNEL (taps), STRATA_DILATION.
#include "rows.cuh"

using namespace strata;

namespace {

constexpr int kHead = STRATA_HEAD, kHeld = kHead / 32, kTaps = STRATA_KERNEL, kDilation = STRATA_DILATION;
constexpr int kBack = (kTaps - 1) * kDilation, kWarps = 4, kRows = 64 / kWarps, kTogether = 4, kKept = 16;
static_assert(kRows % kTogether == 0 && 64 % kKept == 0);

struct Columns {
  StepRows rows;
  const float* x;     // [rows, channels]
  const float* ring;  // [slots, ring_rows, channels]
  int channels, ring_rows;

  // The column `back` before row r, which is in a block of one sequence; null before the sequence begins, where there are zeros.
  __device__ __forceinline__ const float* at(int r, int back, int position, int sequence) const {
    if (position - back < 0) return nullptr;
    if (rows.same(r - back, sequence)) return x + static_cast<size_t>(r - back) * channels;
    return ring + (static_cast<size_t>(sequence) * ring_rows + (position - back) % ring_rows) * channels;
  }
};

}  // namespace

extern "C" {

// Grid (channels / STRATA_HEAD, blocks of rows), four warps of 16 rows. The first 2 * heads heads become unit ones in `qk` as well,
// where that is given, the first half of them times `scale`.
__global__ void __launch_bounds__(32 * kWarps) conv_prompt(const int* live, const int* positions, const int* sequences, const float* x,
                                                           const float* weight, const float* ring, float* out, float* qk, int channels,
                                                           int slots, int ring_rows, int heads, float scale, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const Columns columns{{positions, sequences, *live, slots}, x, ring, channels, ring_rows};
  const int head = blockIdx.x, first = 64 * blockIdx.y + kRows * warp_id(), c = head * kHead + lane_id();
  if (first + kRows > columns.rows.live) return;
  if (!columns.rows.valid(first)) return report(faults, kFaultRange);
  const int position = positions[first], sequence = sequences[first];
  const bool unit = qk != nullptr && head < 2 * heads;
  float w[kHeld][kTaps], kept[kHeld][kBack + 1];  // kept[.][j]: the column kBack - j before the row
#pragma unroll
  for (int e = 0; e < kHeld; ++e)
#pragma unroll
    for (int j = 0; j < kTaps; ++j) w[e][j] = weight[(c + 32 * e) * kTaps + j];
#pragma unroll
  for (int j = 1; j <= kBack; ++j) {
    const float* column = columns.at(first, kBack + 1 - j, position, sequence);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) kept[e][j] = column == nullptr ? 0.0f : column[c + 32 * e];
  }
  float next[kTogether][kHeld];
#pragma unroll kTogether
  for (int i = 0; i < kRows; ++i) {
    const int r = first + i;
    if (i % kTogether == 0) {  // some rows at once, before anything is stored: a load that follows a store waits for it
#pragma unroll
      for (int n = 0; n < kTogether; ++n)
#pragma unroll
        for (int e = 0; e < kHeld; ++e) next[n][e] = x[static_cast<size_t>(r + n) * channels + c + 32 * e];
    }
    float y[kHeld], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
#pragma unroll
      for (int j = 0; j < kBack; ++j) kept[e][j] = kept[e][j + 1];
      kept[e][kBack] = next[i % kTogether][e];
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) sum = fma32(w[e][j], kept[e][j * kDilation], sum);
      y[e] = silu32(sum);
      squares = fma32(y[e], y[e], squares);
    }
#pragma unroll
    for (int e = 0; e < kHeld; ++e) out[static_cast<size_t>(r) * channels + c + 32 * e] = y[e];
    if (!unit) continue;
    const float inverse = div32(1.0f, sqrt32(warp_tree_sum(squares) + 1e-6f));
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      const float v = y[e] * inverse;
      qk[static_cast<size_t>(r) * 2 * heads * kHead + c + 32 * e] = head < heads ? v * scale : v;
    }
  }
}

// After it: the last columns of every sequence to its ring, those before a tap to the tap's. A thread a channel; grid (channels,
// blocks of rows).
__global__ void conv_keep(const int* live, const int* positions, const int* sequences, const int* tap_positions, const int* tap_slots,
                          const float* x, float* ring, int channels, int slots, int ring_rows, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const StepRows rows{positions, sequences, *live, slots};
  const int first = 64 * blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (first + 64 > rows.live || c >= channels || !rows.valid(first)) return;
  const int sequence = sequences[first], position = positions[first];
  const auto place = [&](int slot, int p) { return ring + (static_cast<size_t>(slot) * ring_rows + p % ring_rows) * channels + c; };
  for (int i = 0; i < kMaxTaps; ++i) {
    if (tap_positions[i] != position + 64) continue;
    if (tap_slots[i] < 0 || tap_slots[i] >= slots) {
      report(faults, kFaultRange);
      continue;
    }
    for (int p = position + 64 - kBack; p < position + 64; ++p) *place(tap_slots[i], p) = x[static_cast<size_t>(first + p - position) * channels + c];
  }
  if (rows.same(first + 63 + ring_rows, sequence)) return;  // a sequence's rows are neighbours: none of these is among its last
  for (int r = 0; r < 64; r += kKept) {
    float column[kKept];
    bool last[kKept];
#pragma unroll
    for (int n = 0; n < kKept; ++n) {  // before anything is stored, as above
      last[n] = !rows.same(first + r + n + ring_rows, sequence);
      column[n] = x[static_cast<size_t>(first + r + n) * channels + c];
    }
#pragma unroll
    for (int n = 0; n < kKept; ++n)
      if (last[n]) *place(sequence, position + r + n) = column[n];
  }
}

}  // extern "C"
