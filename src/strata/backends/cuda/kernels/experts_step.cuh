// What the launches of a step's experts share (experts_step.cu, experts_rows.cu); macros there.
#pragma once

#include "ahead.cuh"
#if STRATA_TAKE_LATE
#include "expert_late.cuh"
#endif
#include "op.cuh"
#include "packed_copies.cuh"
#include "staged_weights.cuh"
#include "step.cuh"
#include "streams.cuh"
#include "topk.cuh"

namespace strata {

constexpr int kHidden = STRATA_HIDDEN, kInner = STRATA_INNER, kTop = STRATA_TOP;
constexpr int kSegs = STRATA_SEGMENTS, kUpThreads = 32 * kSegs;  // 32 features a thread block
constexpr int kInnerSegs = STRATA_INNER_SEGMENTS, kPerWarp = 32 / kInnerSegs, kFeatures = STRATA_FEATURES, kPasses = kFeatures / kPerWarp;
#ifdef STRATA_SHARED
constexpr int kPlanes = kTop + 1;
#else
constexpr int kPlanes = kTop;
#endif
constexpr int kDownThreads = 32 * kPlanes;
static_assert(kTop <= 31 && kFeatures % kPerWarp == 0 && kInner % 32 == 0 && kHidden % 32 == 0);

using GatePlane = ExpertPlane<STRATA_TYPE, STRATA_COPIES>::type;
using UpPlane = ExpertPlane<STRATA_UP, STRATA_COPIES>::type;

// The bytes of a chosen expert's down are brought to the cache: by the `parts` thread blocks that compute its features, each a share.
__device__ __forceinline__ void fetch_down(const uint8_t* at, uint32_t bytes, uint32_t part, uint32_t parts) {
  const uint32_t each = ((bytes + parts - 1) / parts + 127) / 128 * 128, begin = part * each;
  if (begin < bytes) fetch_to_cache(at + begin, (bytes - begin < each ? bytes - begin : each) / 16 * 16);
}

}  // namespace strata
