// Softmax and value sums of one attention split of 256 cells, and how splits join.
#pragma once
#include <limits>

#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int kValueChunk = 64;  // values of a head summed together

struct SplitSoftmax {
  float max, sum;
};

// Over the splits so far; the last join's factors, for the values that follow it.
struct RunningSoftmax {
  bool empty = true;
  float max = 0, sum = 0;
  float old_factor = 0, new_factor = 0;
};

// Cells [begin, end) of a split: scores become exp(score - max); the sum is in 32 lanes by cell and a tree.
STRATA_HD SplitSoftmax split_softmax(float* __restrict scores, int64_t begin, int64_t end) {
  alignas(64) float max[kLanes], sum[kLanes] = {};
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < begin; ++t) scores[t] = kLowest;
  for (int64_t t = end; t % kLanes != 0; ++t) scores[t] = kLowest;
  for (int i = 0; i < kLanes; ++i) max[i] = kLowest;
  for (int64_t t = 0; t < end; t += kLanes)
    for (int i = 0; i < kLanes; ++i) max[i] = scores[t + i] > max[i] ? scores[t + i] : max[i];
  for (int i = 1; i < kLanes; ++i) max[0] = max[i] > max[0] ? max[i] : max[0];
  for (int64_t t = begin; t < end; ++t) scores[t] = exp32(scores[t] - max[0]);
  for (int64_t t = begin; t < end; ++t) sum[t % kLanes] += scores[t];
  return {max[0], tree_sum(sum)};
}

STRATA_HD void join_softmax(RunningSoftmax& running, SplitSoftmax split) {
  if (running.empty) {
    running = {false, split.max, split.sum, 0.0f, 1.0f};
    return;
  }
  const float max = split.max > running.max ? split.max : running.max;
  running.old_factor = exp32(running.max - max);
  running.new_factor = exp32(split.max - max);
  running.sum = fma32(running.sum, running.old_factor, split.sum * running.new_factor);
  running.max = max;
}

// out[d] = sum over cells of weight * value, in 32 lanes by cell and a tree. values: [256][kValueChunk].
STRATA_HD void sum_values(const float* __restrict weights, const float* __restrict values, int64_t begin, int64_t end,
                          float* __restrict out) {
  alignas(64) float lanes[kLanes][kValueChunk];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    float acc[kValueChunk] = {};
    for (int64_t t = begin + ((lane - begin) & (kLanes - 1)); t < end; t += kLanes)
      for (int d = 0; d < kValueChunk; ++d) acc[d] = fma32(weights[t], values[t * kValueChunk + d], acc[d]);
    for (int d = 0; d < kValueChunk; ++d) lanes[lane][d] = acc[d];
  }
  for (int half = kLanes / 2; half > 1; half /= 2)
    for (int i = 0; i < half; ++i)
      for (int d = 0; d < kValueChunk; ++d) lanes[i][d] += lanes[i + half][d];
  for (int d = 0; d < kValueChunk; ++d) out[d] = lanes[0][d] + lanes[1][d];
}

// Adds a split's value sums to the row's, after join_softmax.
STRATA_HD void join_values(const RunningSoftmax& running, bool first, const float* values, int64_t n, float* out) {
  for (int64_t d = 0; d < n; ++d)
    out[d] = first ? values[d] : fma32(out[d], running.old_factor, values[d] * running.new_factor);
}

}  // namespace strata::STRATA_LEVEL
