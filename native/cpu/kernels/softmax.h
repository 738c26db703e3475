// Softmax and value sums of one attention split of 256 cells, and how splits join.
#pragma once
#include <limits>

#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int kValueChunk = 64;  // values of a head summed together
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Of one row and head: max = -infinity where the split has no visible cell.
struct SplitSoftmax {
  float max, sum;
};

// Cells [begin, end) of a split: scores become exp(score - max); the sum is in 32 lanes by cell and a tree.
STRATA_HD SplitSoftmax split_softmax(float* __restrict scores, int64_t begin, int64_t end) {
  alignas(64) float max[kLanes], sum[kLanes] = {};
  for (int64_t t = 0; t < begin; ++t) scores[t] = kNoScore;
  for (int64_t t = end; t % kLanes != 0; ++t) scores[t] = kNoScore;
  for (int i = 0; i < kLanes; ++i) max[i] = kNoScore;
  for (int64_t t = 0; t < end; t += kLanes)
    for (int i = 0; i < kLanes; ++i) max[i] = scores[t + i] > max[i] ? scores[t + i] : max[i];
  for (int i = 1; i < kLanes; ++i) max[0] = max[i] > max[0] ? max[i] : max[0];
  for (int64_t t = begin; t < end; ++t) scores[t] = exp32(scores[t] - max[0]);
  for (int64_t t = begin; t < end; ++t) sum[t % kLanes] += scores[t];
  return {max[0], tree_sum(sum)};
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

// Joins splits 0 .. splits - 1 in ascending order under their largest maximum: out[d] = sum of value sums over sum of
// weights. Split s has softmax[s] and values + s * stride.
STRATA_HD void join_splits(const SplitSoftmax* softmax, const float* values, int64_t splits, int64_t stride,
                           int64_t head_dim, float* __restrict out) {
  float max = softmax[0].max, sum = 0.0f;
  for (int64_t s = 1; s < splits; ++s) max = softmax[s].max > max ? softmax[s].max : max;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0.0f;
  for (int64_t s = 0; s < splits; ++s) {
    if (softmax[s].max == kNoScore) continue;
    const float factor = exp32(softmax[s].max - max);
    const float* __restrict part = values + s * stride;
    sum = fma32(softmax[s].sum, factor, sum);
    for (int64_t d = 0; d < head_dim; ++d) out[d] = fma32(part[d], factor, out[d]);
  }
  for (int64_t d = 0; d < head_dim; ++d) out[d] = div32(out[d], sum);
}

}  // namespace strata::STRATA_LEVEL
