// Softmax and value sums of one attention split of 256 cells, and how splits join.
#pragma once
#include <limits>

#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int kRowValues = 64;  // sums taken together: values of a head, or the cells of a page
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

// out[i] = sum over t in [begin, end) of weights[t] * rows[t][i]: t by fma into lane t mod 32, then the tree. With
// weights = softmax and rows = V this is a split's values; with weights = q and rows = K transposed, a page's scores.
STRATA_HD void lanes_of_rows(const float* __restrict weights, const float* __restrict rows, int64_t begin, int64_t end,
                             float* __restrict out) {
  constexpr int kHalf = kLanes / 2;  // the tree's first level is taken at once: lanes j and j + 16 are added
  alignas(64) float lanes[kHalf][kRowValues];
  for (int64_t lane = 0; lane < kHalf; ++lane) {
    float acc0[kRowValues] = {}, acc1[kRowValues] = {};
    for (int64_t t = begin + ((lane - begin) & (kLanes - 1)); t < end; t += kLanes)
      for (int i = 0; i < kRowValues; ++i) acc0[i] = fma32(weights[t], rows[t * kRowValues + i], acc0[i]);
    for (int64_t t = begin + ((lane + kHalf - begin) & (kLanes - 1)); t < end; t += kLanes)
      for (int i = 0; i < kRowValues; ++i) acc1[i] = fma32(weights[t], rows[t * kRowValues + i], acc1[i]);
    for (int i = 0; i < kRowValues; ++i) lanes[lane][i] = acc0[i] + acc1[i];
  }
  for (int half = kHalf / 2; half > 1; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      for (int i = 0; i < kRowValues; ++i) lanes[lane][i] += lanes[lane + half][i];
  for (int i = 0; i < kRowValues; ++i) out[i] = lanes[0][i] + lanes[1][i];
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
