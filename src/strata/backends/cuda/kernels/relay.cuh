// Long segments by two lanes each: all of a segment's blocks are loaded before the first is used, their integer sums are taken side by
// side, and the chain of float steps passes from the first lane to the second, so that its order is the contract's.
#pragma once

#include "product.cuh"

namespace strata {

// A warp takes one weight row of 16 segments: lane l segment l % 16, the first half of its blocks (at most Most) or the rest.
template <QuantType T, int M, int Most, class P = Packed<T>> struct RelayChain {
  static constexpr int kSegs = 16;
  typename P::Raw raw[Most];
  int segment, begin, count;
  bool second;

  __device__ __forceinline__ RelayChain(const uint8_t* w, int n, int blocks, int row) {
    segment = lane_id() % kSegs, second = lane_id() >= kSegs;
    const int first = first_block<kSegs>(segment, blocks), end = first_block<kSegs>(segment + 1, blocks);
    const int middle = (first + end + 1) / 2;
    begin = second ? middle : first, count = (second ? end : middle) - begin;
#pragma unroll
    for (int i = 0; i < Most; ++i)
      if (i < count) raw[i] = P::load(w, n, blocks, row, begin + i);
  }

  // y of the lanes of second halves is the segments' chains.
  __device__ __forceinline__ void run(const uint32_t* table, const StagedRows& a, float (&y)[M]) const {
    BlockSums sums[Most][M];
#pragma unroll
    for (int i = 0; i < Most; ++i)
      if (i < count) block_sums<T, M, P>(raw[i], table, a, begin + i, segment, sums[i]);
#pragma unroll
    for (int m = 0; m < M; ++m) y[m] = 0.0f;
    if (!second) steps(a, sums, y);
#pragma unroll
    for (int m = 0; m < M; ++m) y[m] = __shfl_xor_sync(kFullWarp, y[m], kSegs);
    if (second) steps(a, sums, y);
  }

 private:
  __device__ __forceinline__ void steps(const StagedRows& a, const BlockSums (&sums)[Most][M], float (&y)[M]) const {
#pragma unroll
    for (int i = 0; i < Most; ++i) {
      if (i >= count) break;
      const Scales w = P::scales(raw[i]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const BlockSums& s = sums[i][m];
        y[m] = block_step<T>(w, s.sum0, s.sum1, a.scales[m * a.blocks + begin + i], s.low, s.high, y[m]);
      }
    }
  }
};

}  // namespace strata
