// Sampling, the parts that a processor and a GPU share (docs/sampling.md).
#pragma once
#include "strata/contract.h"

namespace strata {

// One row's parameters; `SAMPLE_PARAMS` in strata/ops/sample.py is the same layout.
struct SampleParams {
  uint64_t seed;
  float temperature;  // 0: the largest logit
  int32_t top_k;      // 0: off
  float top_p;        // 1: off
  float min_p;        // 0: off
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t mask_id;     // row of the masks, -1: none
  int32_t count_slot;  // row of the counts plane, -1: none
  int32_t bias_begin, bias_count;
  int32_t reserved;
};
static_assert(sizeof(SampleParams) == 56);

// Bounds of gumbel32, which is evaluated at 2^23 points only (checked on all of them).
constexpr float kGumbelMax = 16.64f, kGumbelMin = -2.82f;

// Distance below the best logit past which a candidate neither wins (gumbels cannot make it up) nor changes a float
// sum that begins with 1 (its probability is under 2^-24).
constexpr float kSampleReach = 20.0f;
constexpr int kSumPiece = 2048;  // ids whose sum a sum over the vocabulary adds up

// Logit after penalties; bit 0 of count: seen in the prompt, the rest: times in the output.
STRATA_HD float penalise(float z, int32_t count, const SampleParams& p) {
  const int32_t output = count >> 1;
  const float repeated = z > 0.0f ? div32(z, p.repetition_penalty) : z * p.repetition_penalty;
  const float y = (count != 0 ? repeated : z) - p.frequency_penalty * static_cast<float>(output);
  return y - (output > 0 ? p.presence_penalty : 0.0f);
}

// Standard Gumbel number from random bits.
STRATA_HD float gumbel32(uint32_t bits) { return -log32(-log32(uniform23(bits))); }

}  // namespace strata
