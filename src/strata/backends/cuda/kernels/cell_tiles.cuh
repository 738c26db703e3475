// Tiles of 64 cells of the KV pool in shared memory as halves, for attention of prompts on tensor cores.
#pragma once

#include "kv.cuh"
#include "tensor.cuh"

namespace strata {

constexpr int kTileCells = 64;

// A tile on its way from the pool to shared memory: `fetch` starts it, `land` ends it, and a barrier after that makes it seen.
// `row(c)`: of cell c of the tile its number among all cells of the pool, page and head included.
template <int Kv, int D, int Threads> struct CellTile {
  static constexpr int kStride = D + 8, kUnits = kTileCells * D / 8;  // eight values each
  static constexpr int kEach = kUnits / Threads;
  static constexpr int kGroup = D < kKvGroup ? D : kKvGroup;
  static_assert(kUnits % Threads == 0 && (Kv == kKvF16 || Kv == kKvInt8));

  uint2 codes[Kv == kKvInt8 ? kEach : 1];
  uint32_t scales[Kv == kKvInt8 ? kEach : 1];

  template <class Row> __device__ __forceinline__ void fetch(uint16_t* to, const void* pool, const unsigned short* pool_scales, Row row) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int u = threadIdx.x + i * Threads, c = u / (D / 8), at = u % (D / 8) * 8;
      const size_t from = static_cast<size_t>(row(c)) * D + at;
      if constexpr (Kv == kKvF16) {
        copy_async<16>(to + c * kStride + at, static_cast<const unsigned short*>(pool) + from);
      } else {
        codes[i] = *reinterpret_cast<const uint2*>(static_cast<const int8_t*>(pool) + from);
        scales[i] = pool_scales[from / kGroup];
      }
    }
    if constexpr (Kv == kKvF16) copies_group();
  }
  // `Left`: tiles of halves, fetched after this one, that may stay on their way.
  template <int Left> __device__ __forceinline__ void land(uint16_t* to) {
    if constexpr (Kv == kKvF16) copies_wait_for_groups<Left>();
    if constexpr (Kv == kKvInt8) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int u = threadIdx.x + i * Threads, c = u / (D / 8), at = u % (D / 8) * 8;
        uint4 x;
        scaled_halves(codes[i].x ^ 0x80808080u, scales[i] * 0x10001u, x.x, x.y);
        scaled_halves(codes[i].y ^ 0x80808080u, scales[i] * 0x10001u, x.z, x.w);
        *reinterpret_cast<uint4*>(to + c * kStride + at) = x;
      }
    }
  }
};

// What 16 rows of scores need between tiles of cells: a lane has rows lane / 4 and lane / 4 + 8.
struct RunningSoftmax {
  float most[2] = {bits_float(0xff800000u), bits_float(0xff800000u)}, sum[2] = {};

  // The new maxima; by what earlier weights and sums are to be multiplied.
  __device__ __forceinline__ void raise(const float (&to)[2], float (&factor)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float now = fmaxf(most[e], to[e]);
      factor[e] = most[e] == now ? 1.0f : exp32(most[e] - now);
      most[e] = now, sum[e] *= factor[e];
    }
  }
  // Scores become weights; those at minus infinity weigh nothing.
  template <int N> __device__ __forceinline__ void weigh(float (&scores)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = scores[n][e], m = most[e / 2];
        const float p = x == bits_float(0xff800000u) ? 0.0f : exp32(x - m);
        scores[n][e] = p, sum[e / 2] += p;
      }
  }
};

// The largest of a row over a lane's scores and those of the other three lanes that share the row.
template <int N> __device__ __forceinline__ void row_maxima(const float (&scores)[N][4], float (&most)[2]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float m = bits_float(0xff800000u);
#pragma unroll
    for (int n = 0; n < N; ++n) m = fmaxf(m, fmaxf(scores[n][2 * e], scores[n][2 * e + 1]));
    m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 1));
    most[e] = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 2));
  }
}

}  // namespace strata
