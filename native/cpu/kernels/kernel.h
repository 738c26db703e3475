// What every kernel file starts from. Kernels are compiled once per instruction set, so everything they define lives
// in that set's namespace, and everything they share is always inlined: an ordinary inline function would be merged
// by the linker into one copy that some processors cannot run.
#pragma once
#include "cpu/kernels/list.h"
#include "cpu/op.h"
#include "strata/contract.h"

namespace strata::STRATA_LEVEL {

#define STRATA_DECLARE(name, ptrs, dims, scalars) void name(const Op& op, int thread, int threads);
STRATA_KERNELS(STRATA_DECLARE)
#undef STRATA_DECLARE

struct Range {
  int64_t begin, end;
};

// Thread's contiguous part of [0, total), cut at multiples of grain.
STRATA_HD Range part(int64_t total, int64_t grain, int thread, int threads) {
  const int64_t units = (total + grain - 1) / grain;
  const int64_t begin = units * thread / threads * grain, end = units * (thread + 1) / threads * grain;
  return {begin < total ? begin : total, end < total ? end : total};
}

// Live rows of this step: the int32 that pointer i names.
STRATA_HD int64_t live_rows(const Op& op, int i) { return *op.at<const int32_t>(i); }

// acc[i mod 32] = fma(a[i], b[i], acc[i mod 32]) over n values, in ascending order.
STRATA_HD void lanes_fma(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict acc) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) acc[j] = fma32(a[i + j], b[i + j], acc[j]);
  for (int j = 0; i + j < n; ++j) acc[j] = fma32(a[i + j], b[i + j], acc[j]);
}

}  // namespace strata::STRATA_LEVEL
