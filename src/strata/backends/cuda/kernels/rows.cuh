// Rows of a step by sequence, rings of rows by position, pages, taps and rotary positions: what kernels with state share.
#pragma once

#include "kv.cuh"
#include "op.cuh"
#include "step.cuh"

namespace strata {

constexpr int kRingRows = 64;  // ops/step.py RING_ROWS
constexpr int kMaxTaps = 4;    // ops/step.py MAX_TAPS

__device__ __forceinline__ int ring_row(int position) { return position & (kRingRows - 1); }

// The step's rows: consecutive rows of one sequence have consecutive positions.
struct StepRows {
  const int *positions, *sequences;
  int live, slots;  // sequences are below `slots`

  __device__ __forceinline__ bool valid(int row) const {
    return sequences[row] >= 0 && sequences[row] < slots && positions[row] >= 0;
  }
  // Whether row r exists and belongs to `sequence`.
  __device__ __forceinline__ bool same(int r, int sequence) const {
    return r >= 0 && r < live && sequences[r] == sequence;
  }
  __device__ __forceinline__ bool begins(int row) const { return row == 0 || sequences[row - 1] != sequences[row]; }
  // Rows of the group that begins at `row`; all lanes of a warp call it together.
  __device__ __forceinline__ int group_rows(int row) const {
    const int sequence = sequences[row];
    for (int first = row + 1; first < live; first += 32) {
      const unsigned other = ~__ballot_sync(kFullWarp, same(first + lane_id(), sequence));
      if (other) return first + __ffs(other) - 1 - row;
    }
    return live - row;
  }
};

// Slot that tap i writes for a group of `rows` rows from `position` on, or -1.
__device__ __forceinline__ int tap_slot(const int* tap_positions, const int* tap_slots, int i, int position, int rows) {
  return tap_positions[i] > position && tap_positions[i] <= position + rows ? tap_slots[i] : -1;
}

struct Rotary {
  const float* table;  // [max_positions, pairs, 2]: cos, sin
  const int* axes;     // [pairs], 0 to 2
  int pairs, max_positions;

  __device__ __forceinline__ bool valid(const int* positions) const {
    bool inside = true;
    for (int i = 0; i < 3; ++i) inside &= positions[i] >= 0 && positions[i] < max_positions;
    return inside;
  }
};

// One warp: 1 / sqrt(mean(x^2) + eps).
__device__ __forceinline__ float warp_norm_inverse(const float* x, int width, float eps) {
  return div32(1.0f, sqrt32(div32(warp_dot(x, x, width), static_cast<float>(width)) + eps));
}

// Cosine and sine of this lane's pair at a row's positions; may come before the values.
struct Angle {
  float2 at;
  __device__ __forceinline__ Angle(const Rotary& rotary, const int* positions, int pair) {
    if (pair < rotary.pairs)
      at = *(reinterpret_cast<const float2*>(rotary.table) + static_cast<size_t>(positions[rotary.axes[pair]]) * rotary.pairs + pair);
  }
};

// One warp: RMS norm of x, then rotation of its first 2 * pairs values: pair i is (i, i + pairs). Up to 256 values are all on their way
// together; `first`: of pair lane_id().
__device__ __forceinline__ void norm_rotate(const float* x, const float* weight, int dim, float eps, const Rotary& rotary,
                                            const int* positions, const Angle& first, float* out) {
  constexpr int held = 8;
  float value[held], scale[held];
#pragma unroll
  for (int e = 0; e < held; ++e) {
    const int i = lane_id() + 32 * e;
    value[e] = i < dim ? x[i] : 0.0f;
    scale[e] = i < dim ? weight[i] : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < held; ++e)
    if (lane_id() + 32 * e < dim) sum = fma32(value[e], value[e], sum);
  for (int i = lane_id() + 32 * held; i < dim; i += 32) sum = fma32(x[i], x[i], sum);
  const float inverse = div32(1.0f, sqrt32(div32(warp_tree_sum(sum), static_cast<float>(dim)) + eps));
  const auto put = [&](int i, float normed) {
    if (i >= 2 * rotary.pairs) {
      out[i] = normed;
    } else if (i < rotary.pairs) {
      const float2 angle = i < 32 ? first.at : Angle(rotary, positions, i).at;
      const int j = i + rotary.pairs;
      const float other = (x[j] * inverse) * weight[j];
      out[i] = fma32(normed, angle.x, -(other * angle.y));
      out[j] = fma32(other, angle.x, normed * angle.y);
    }
  };
#pragma unroll
  for (int e = 0; e < held; ++e)
    if (lane_id() + 32 * e < dim) put(lane_id() + 32 * e, (value[e] * inverse) * scale[e]);
  for (int i = lane_id() + 32 * held; i < dim; i += 32) put(i, (x[i] * inverse) * weight[i]);
}

}  // namespace strata
