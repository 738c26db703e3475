// The GEMV without the contract's order, for its price: a row's lanes take blocks in turn (coalesced), and a shuffle tree
// adds the lanes. Otherwise the kernel of gemv.cuh.
#pragma once

#include "gemv.cuh"

namespace strata {

template <QuantType T, int K, int M, int Copies>
__device__ __forceinline__ void gemv_free(const uint8_t* w, int n, const int8_t* q, const float* d, const int16_t* sums,
                                          int rows, float* y) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int blocks = Tile<K>::kBlocks, segs = Tile<K>::kSegs, ahead = Tile<K>::kAhead;
  constexpr int table_words = Packed<T>::kTableWords * Copies;
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  auto& a = *reinterpret_cast<Activations<K, M, 0>*>(shared + 4 * table_words + blockDim.x * M * 4);
  const int first = (blockIdx.x * (blockDim.x / 32) + warp_id()) * Tile<K>::kRows;
  const int row = min(first + lane_id() / segs, n - 1), s = lane_id() % segs;
  typename Packed<T>::Raw raw[ahead];
#pragma unroll
  for (int i = 0; i < ahead; ++i) raw[i] = Packed<T>::load(w, n, blocks, row, min(i * segs + s, blocks - 1));
  dependency_launch();
  Packed<T>::template fill<Copies>(table);
  dependency_wait();
  a.stage(q, d, sums, rows);
  __syncthreads();
  float part[M] = {};
#pragma unroll 1
  for (int j = 0; j < Tile<K>::kLongest; j += ahead) {
    typename Packed<T>::Raw next[ahead];
    if (j + ahead < Tile<K>::kLongest) {
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        next[i] = Packed<T>::load(w, n, blocks, row, min((j + ahead + i) * segs + s, blocks - 1));
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      if (blocks % segs == 0 && Tile<K>::kLongest % ahead == 0 || (j + i) * segs + s < blocks)
        block_rows<T, Copies>(raw[i], table + lane_id() % Copies, a, (j + i) * segs + s, part);
    if (j + ahead < Tile<K>::kLongest) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) raw[i] = next[i];
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float x = part[m];
#pragma unroll
    for (int half = segs / 2; half > 0; half /= 2) x += __shfl_xor_sync(kFullWarp, x, half);
    if (s == 0 && m < rows && row < n) y[static_cast<size_t>(m) * n + row] = x;
  }
}

}  // namespace strata
