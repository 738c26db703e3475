// Rows of a step by sequence, rings of rows by position, and taps: what recurrent kernels share.
#pragma once
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int64_t kRingRows = 64;  // ops/step.py RING_ROWS
constexpr int kMaxTaps = 4;        // ops/step.py MAX_TAPS
constexpr int kChunkBlock = 64;    // ops/step.py CHUNK_BLOCK

// Consecutive rows of one sequence, at consecutive positions from `position` on.
struct Group {
  int64_t row, rows, sequence, position;
};

// The group that begins at `row`; its sequence is -1 where the step names one outside [0, slots) or a negative position.
STRATA_HD Group group_at(const int32_t* positions, const int32_t* sequences, int64_t row, int64_t live, int64_t slots) {
  int64_t rows = 1;
  while (row + rows < live && sequences[row + rows] == sequences[row]) ++rows;
  const bool valid = sequences[row] >= 0 && sequences[row] < slots && positions[row] >= 0;
  return {row, rows, valid ? sequences[row] : -1, positions[row]};
}

STRATA_HD int64_t ring_row(int64_t position) { return position & (kRingRows - 1); }

// Slot that tap i writes for this group, or -1.
STRATA_HD int64_t tap_slot(const Group& group, const int32_t* tap_positions, const int32_t* tap_slots, int i) {
  return tap_positions[i] > group.position && tap_positions[i] <= group.position + group.rows ? tap_slots[i] : -1;
}

STRATA_HD float lane_dot(const float* a, const float* b, int64_t n) {
  alignas(64) float acc[kLanes] = {};
  lanes_fma(a, b, n, acc);
  return tree_sum(acc);
}

// 1 / sqrt(mean(x^2) + eps).
STRATA_HD float norm_inverse(const float* x, int64_t width, float eps) {
  return div32(1.0f, sqrt32(div32(lane_dot(x, x, width), static_cast<float>(width)) + eps));
}

}  // namespace strata::STRATA_LEVEL
