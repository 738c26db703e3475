// Tiles of 64 cells of the KV pool in shared memory as halves, for attention of prompts on tensor cores. int8 codes are exact halves;
// their scales lie beside them and meet sums of scores and weights, so that nothing is rounded that the pool does not round.
#pragma once

#include "kv.cuh"
#include "tensor.cuh"

namespace strata {

constexpr int kTileCells = 64;

// A tile on its way from the pool to shared memory: `fetch` starts it, `land` ends it, and a barrier after that makes it seen.
// `row(c)`: of cell c of the tile its number among all cells of the pool, page and head included.
template <int Kv, int D, int Threads> struct CellTile {
  static constexpr int kStride = D + 8, kWide = Kv == kKvInt8 ? 16 : 8;  // values of a load
  static constexpr int kUnits = kTileCells * D / kWide;
  static constexpr int kEach = kUnits / Threads;
  static constexpr int kGroups = Kv == kKvInt8 ? D / kKvGroup : 1;  // of a cell, with a scale each
  static_assert(D % kKvGroup == 0 && kUnits % Threads == 0 && (Kv == kKvF16 || Kv == kKvInt8));

  uint4 codes[Kv == kKvInt8 ? kEach : 1];
  uint32_t scales[Kv == kKvInt8 ? kEach : 1];

  template <class Row> __device__ __forceinline__ void fetch(uint16_t* to, const void* pool, const unsigned short* pool_scales, Row row) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int u = threadIdx.x + i * Threads, c = u / (D / kWide), at = u % (D / kWide) * kWide;
      const size_t from = static_cast<size_t>(row(c)) * D + at;
      if constexpr (Kv == kKvF16) {
        copy_async<16>(to + c * kStride + at, static_cast<const unsigned short*>(pool) + from);
      } else {
        codes[i] = *reinterpret_cast<const uint4*>(static_cast<const int8_t*>(pool) + from);
        scales[i] = pool_scales[from / kKvGroup];
      }
    }
    if constexpr (Kv == kKvF16) copies_group();
  }
  // `Left`: tiles of halves, fetched after this one, that may stay on their way. `scale`: [groups][64 cells], of int8.
  template <int Left> __device__ __forceinline__ void land(uint16_t* to, float* scale) {
    if constexpr (Kv == kKvF16) copies_wait_for_groups<Left>();
    if constexpr (Kv == kKvInt8) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int u = threadIdx.x + i * Threads, c = u / (D / kWide), at = u % (D / kWide) * kWide;
        uint4 x, y;
        code_halves(codes[i].x ^ 0x80808080u, x.x, x.y);
        code_halves(codes[i].y ^ 0x80808080u, x.z, x.w);
        code_halves(codes[i].z ^ 0x80808080u, y.x, y.y);
        code_halves(codes[i].w ^ 0x80808080u, y.z, y.w);
        if (at % kKvGroup == 0) scale[at / kKvGroup * kTileCells + c] = half_float(static_cast<uint16_t>(scales[i]));
        reinterpret_cast<uint4*>(to + c * kStride + at)[0] = x;
        reinterpret_cast<uint4*>(to + c * kStride + at)[1] = y;
      }
    }
  }
};

// acc = query times key tiles for 16 N / 2 cells: `load(k, hi, lo)` gives 16 rows of queries as parts, keys lie from `cell` on.
template <int Kv, int D, int N, class Load>
__device__ __forceinline__ void query_scores(float (&acc)[N][4], const uint16_t* keys, const float* scale, int cell, Load load) {
  constexpr int groups = Kv == kKvInt8 ? D / kKvGroup : 1, steps = D / groups / 16;
#pragma unroll 1
  for (int g = 0; g < groups; ++g) {
    float part[N][4] = {};
#pragma unroll 4
    for (int s = 0; s < steps; ++s) {
      const int k = 16 * (g * steps + s);
      uint32_t hi[4], lo[4];
      load(k, hi, lo);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        uint32_t key[4];
        load_right<false>(key, keys, D + 8, cell + 8 * n, k);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          mma_f16(part[n + e], lo, key[2 * e], key[2 * e + 1]);
          mma_f16(part[n + e], hi, key[2 * e], key[2 * e + 1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float2 times = {1.0f, 1.0f};
      if constexpr (Kv == kKvInt8) times = *reinterpret_cast<const float2*>(scale + g * kTileCells + cell + 8 * n + lane_id() % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = fma32(part[n][e], e % 2 == 0 ? times.x : times.y, acc[n][e]);
    }
  }
}

// Weights are at most 1; times this, they and their products with scales below 64 are in the range of halves.
constexpr float kWeightUnit = 1024.0f;

// Four weights of the left side of a product as parts: rows r and r + 8 at cells c, c + 1 (x) and c + 8, c + 9 (y); `scale`: of the
// tile's cells and the values' group, of int8.
template <int Kv>
__device__ __forceinline__ void weight_parts(uint32_t (&hi)[4], uint32_t (&lo)[4], const float (&x)[4], const float (&y)[4], const float* scale,
                                             int c) {
  float2 a = {kWeightUnit, kWeightUnit}, b = a;
  if constexpr (Kv == kKvInt8) {
    a = *reinterpret_cast<const float2*>(scale + c), b = *reinterpret_cast<const float2*>(scale + c + 8);
    a = {kWeightUnit * a.x, kWeightUnit * a.y}, b = {kWeightUnit * b.x, kWeightUnit * b.y};
  }
  const Pair p[4] = {f16_parts(a.x * x[0], a.y * x[1]), f16_parts(a.x * x[2], a.y * x[3]), f16_parts(b.x * y[0], b.y * y[1]),
                     f16_parts(b.x * y[2], b.y * y[3])};
#pragma unroll
  for (int e = 0; e < 4; ++e) hi[e] = p[e].hi, lo[e] = p[e].lo;
}

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
