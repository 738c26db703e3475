// router: the k largest logits of each row, best first, and their weights (contract.h `topk_key`).
// ptr: num_rows, logits [rows, num_experts], topk_ids int32 [rows, k], topk_weights [rows, k];
// dim: num_experts, k (at most 64), renormalise. A non-finite logit raises a fault.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

static constexpr int kMaxChosen = 64;

// keys[0 .. k) become the largest keys, descending; false when a logit is not finite.
STRATA_HD bool largest(const float* logits, int64_t experts, int64_t k, uint64_t* keys) {
  int64_t held = 0;
  bool finite = true;
  for (int64_t e = 0; e < experts; ++e) {
    finite &= (float_bits(logits[e]) & 0x7fffffffu) < 0x7f800000u;
    const uint64_t key = topk_key(logits[e], static_cast<uint32_t>(e));
    if (held == k && key < keys[k - 1]) continue;
    int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && keys[at - 1] < key; --at) keys[at] = keys[at - 1];
    keys[at] = key;
  }
  return finite;
}

void router(const Op& op, int thread, int threads) {
  const int64_t experts = op.dim[0], k = op.dim[1];
  const bool renormalise = op.dim[2] != 0;
  if (k > kMaxChosen || k > experts) return op.fault(kFaultRange);
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = op.at<const float>(1) + r * experts;
    int32_t* ids = op.at<int32_t>(2) + r * k;
    float* weights = op.at<float>(3) + r * k;
    uint64_t keys[kMaxChosen];
    if (!largest(logits, experts, k, keys)) op.fault(kFaultNonFinite);
    for (int64_t i = 0; i < k; ++i) ids[i] = static_cast<int32_t>(topk_index(keys[i]));
    const float best = logits[ids[0]];
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < k; ++i) weights[i] = exp32(logits[ids[i]] - best);
    for (int64_t i = 0; i < (renormalise ? k : experts); ++i)
      lanes[i % kLanes] += renormalise ? weights[i] : exp32(logits[i] - best);
    const float total = tree_sum(lanes);
    for (int64_t i = 0; i < k; ++i) weights[i] = div32(weights[i], total);
  }
}

// group_by_expert: pairs p = row * k + rank sorted by expert, then p; those of expert e are [offsets[e], offsets[e + 1]).
// ptr: num_rows, topk_ids int32 [rows, k], pairs int32 [rows * k], offsets int32 [num_experts + 1]; dim: k, num_experts.
void group_by_expert(const Op& op, int thread, int) {
  if (thread != 0) return;
  const int64_t pairs = live_rows(op, 0) * op.dim[0], experts = op.dim[1];
  const int32_t* ids = op.at<const int32_t>(1);
  int32_t *sorted = op.at<int32_t>(2), *offsets = op.at<int32_t>(3);
  memset(offsets, 0, static_cast<size_t>(experts + 1) * sizeof(int32_t));
  for (int64_t p = 0; p < pairs; ++p)
    if (ids[p] < 0 || ids[p] >= experts) return op.fault(kFaultRange);
  for (int64_t p = 0; p < pairs; ++p) ++offsets[ids[p] + 1];
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  for (int64_t p = 0; p < pairs; ++p) sorted[offsets[ids[p]]++] = static_cast<int32_t>(p);
  for (int64_t e = experts; e > 0; --e) offsets[e] = offsets[e - 1];  // each had moved to the next one's begin
  offsets[0] = 0;
}

}  // namespace strata::STRATA_LEVEL
