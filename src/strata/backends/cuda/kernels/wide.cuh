// Products of prompt chunks with expanded quantised weights on f16 tensor cores, in the contract's order.
//
// A 32-block's exact integer sum is what f16 products with float sums give: codes, or codes times their integer sub-scale, are f16
// integers (one that needs 12 bits is two of them), and sums stay below 2^24. It arrives as a float, so that a chain step is two float
// operations. Operands come from planes that widen.cu makes:
//   codes  uint8 [rows][k]      weight codes + 128                  x  f16 [tokens][k]     activation codes, in kSlot order
//   w      float [blocks][rows] their float scales, kPair order     d  float [blocks][tokens] activation scales, kFour order
// and where a format has them s (two f16 sub-scales a word), m (minimums) as w; sum (d_a * sum of codes) as d.
// Rows and tokens are padded to a multiple of 128, blocks to an even number.
#pragma once

#include "packed.cuh"

#ifndef STRATA_PROBE
#define STRATA_PROBE 0
#endif

namespace strata {

// Where a weight row's scales lie in 16 rows: rows g and g + 8 side by side.
__device__ __forceinline__ int pair_order(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }
// Where a token's scales lie in 16 tokens: tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9 side by side.
__device__ __forceinline__ int four_order(int token) {
  return (token & ~15) | (token & 6) << 1 | (token >> 3 & 1) << 1 | (token & 1);
}
// Where value v of a block of 32 lies among activations: thread t of a quad has values 8 t .. 8 t + 7 of the weights' rows.
__device__ __forceinline__ int slot_order(int v) { return (v >> 2 & 1) << 4 | (v >> 1 & 1) << 3 | (v >> 3) << 1 | (v & 1); }

struct WidePlanes {
  const uint8_t* codes;
  const float* w;
  const uint32_t* s;
  const float* m;
  const uint16_t* x;
  const float* d;
  const float* sum;
  int rows, tokens, blocks;  // padded rows and tokens; blocks of k, not padded
};

// Halves: sub-scales per 16; Terms: f16 terms of a code times its sub-scale; Min: one minimum a block. RowGroups x TokenGroups
// warpgroups of 64 rows x 64 * Parts tokens.
template <bool Halves, int Terms, bool Min, int RowGroups, int TokenGroups, int Parts, int Stages> struct Wide {
  static constexpr int kGroups = RowGroups * TokenGroups, kThreads = 128 * kGroups;
  static constexpr int kRows = 64 * RowGroups, kTokens = 64 * Parts * TokenGroups;
  static constexpr int kPitch = 96;  // bytes of a row of codes: 64 and padding against bank conflicts

  struct Stage {
    uint8_t x[kTokens * 128];
    uint8_t codes[kRows * kPitch];
    float w[2][kRows];
    float d[2][kTokens];
    uint32_t s[Halves ? 2 : 1][Halves ? kRows : 4];
    float m[Min ? 2 : 1][Min ? kRows : 4];
    float sum[Min ? 2 : 1][Min ? kTokens : 4];
  };
  static constexpr int kStageBytes = (static_cast<int>(sizeof(Stage)) + 1023) / 1024 * 1024;
  static constexpr int kTotalBytes = Parts * 32 * 4 * kThreads;
  static constexpr int kSharedBytes = 1024 + Stages * kStageBytes + kTotalBytes;

  uint8_t* base;
  float4* total;
  int group_row, group_token, g, t;
  int segment, end;

  __device__ __forceinline__ Wide(uint8_t* shared) {
    base = shared + (1024 - shared_offset(shared) % 1024) % 1024;
    total = reinterpret_cast<float4*>(base + Stages * kStageBytes) + threadIdx.x;
    const int warp = warp_id();
    group_row = warp / 4 % RowGroups * 64 + warp % 4 * 16, group_token = warp / 4 / RowGroups * 64 * Parts;
    g = lane_id() / 4, t = lane_id() % 4;
  }
  __device__ __forceinline__ Stage& stage(int i) const { return *reinterpret_cast<Stage*>(base + i % Stages * kStageBytes); }

  template <int Count> static __device__ __forceinline__ void copy_scales(void* to, const void* from, int leading) {
    for (int i = threadIdx.x; i < Count / 2; i += kThreads) {  // two blocks of Count floats, 16 bytes at a time
      const int b = i / (Count / 4), part = i % (Count / 4);
      copy_async<16>(static_cast<float*>(to) + b * Count + part * 4, static_cast<const float*>(from) + static_cast<size_t>(b) * leading + part * 4);
    }
  }

  // Starts the copies of blocks 2 i and 2 i + 1.
  __device__ __forceinline__ void copy(const WidePlanes& p, int row0, int token0, int i) const {
    Stage& to = stage(i);
    const int k = (p.blocks + 1) / 2 * 64;
#pragma unroll
    for (int u = threadIdx.x; u < kTokens * 8; u += kThreads) {
      const int token = u / 8, part = u % 8;
      copy_async<16>(to.x + token * 128 + (part ^ token % 8) * 16, p.x + static_cast<size_t>(token0 + token) * k + i * 64 + part * 8);
    }
#pragma unroll
    for (int u = threadIdx.x; u < kRows * 4; u += kThreads) {
      const int row = u / 4, part = u % 4;
      copy_async<16>(to.codes + row * kPitch + part * 16, p.codes + static_cast<size_t>(row0 + row) * k + i * 64 + part * 16);
    }
    const size_t rows = static_cast<size_t>(2 * i) * p.rows + row0, tokens = static_cast<size_t>(2 * i) * p.tokens + token0;
    copy_scales<kRows>(to.w, p.w + rows, p.rows);
    copy_scales<kTokens>(to.d, p.d + tokens, p.tokens);
    if constexpr (Halves) copy_scales<kRows>(to.s, p.s + rows, p.rows);
    if constexpr (Min) copy_scales<kRows>(to.m, p.m + rows, p.rows), copy_scales<kTokens>(to.sum, p.sum + tokens, p.tokens);
  }

  // This thread's fragments of block `b` of the stage's two: two slices of 16 values, each in `Terms` terms.
  __device__ __forceinline__ void fragments(const Stage& s, int b, uint32_t (&a)[2][Terms][4]) const {
    uint2 row[2];
    uint32_t scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h] = *reinterpret_cast<const uint2*>(s.codes + (group_row + g + 8 * h) * kPitch + b * 32 + 8 * t);
    if constexpr (Halves) {
      const uint2 both = *reinterpret_cast<const uint2*>(&s.s[b][group_row + 2 * g]);
      scale[0] = __byte_perm(both.x, 0, t < 2 ? 0x1010 : 0x3232), scale[1] = __byte_perm(both.y, 0, t < 2 ? 0x1010 : 0x3232);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = i ? row[h].y : row[h].x;
          const uint32_t biased = __byte_perm(word, 0x64646464u, half ? 0x4342 : 0x4140);  // 1024 + 128 + code
          uint32_t value = add_halves(biased, 0xe480e480u);
          if constexpr (Halves) {
            const uint32_t product = multiply_halves(value, scale[h]);
            if constexpr (Terms == 2) a[i][1][2 * half + h] = fma_halves(value, scale[h], product ^ 0x80008000u);
            value = product;
          }
          a[i][0][2 * half + h] = value;
        }
  }

  // Starts the products of part `part` of block `b`.
  __device__ __forceinline__ void multiply(const Stage& s, int b, int part, const uint32_t (&a)[2][Terms][4], float (&c)[32]) const {
#if STRATA_PROBE == 2  // benchmarks: no products
#pragma unroll
    for (int i = 0; i < 32; ++i) c[i] = __int_as_float(a[0][0][i & 3]);
    return;
#endif
    products_fence();
    const uint8_t* x = s.x + (group_token + 64 * part) * 128;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < Terms; ++e) group_product(c, a[i][e], x, 2 * b + i, i + e > 0);
    products_commit();
  }

  // The chain steps of a part, and the segment's end where it is one.
  __device__ __forceinline__ void steps(const Stage& s, int b, int part, bool last, const float (&c)[32], float (&y)[32]) const {
#if STRATA_PROBE == 1  // benchmarks: no chain steps
    y[0] += c[0] + c[8] + c[16] + c[24];
    if (last) total[part * 8 * kThreads].x += y[0];
    return;
#endif
    const float2 w = *reinterpret_cast<const float2*>(&s.w[b][group_row + 2 * g]);
    float2 m = make_float2(0.0f, 0.0f);
    if constexpr (Min) m = *reinterpret_cast<const float2*>(&s.m[b][group_row + 2 * g]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = group_token + 64 * part + 16 * j + 4 * t;
      const float4 d = *reinterpret_cast<const float4*>(&s.d[b][at]);
      const float scale[4] = {d.x, d.y, d.z, d.w};
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if constexpr (Min) sum = *reinterpret_cast<const float4*>(&s.sum[b][at]);
      const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int column = e / 4 * 2 + e % 2, i = 8 * j + e;
        y[i] = fma32(c[i], (e & 2 ? w.y : w.x) * scale[column], y[i]);
        if constexpr (Min) y[i] = fma32(e & 2 ? m.y : m.x, sums[column], y[i]);
      }
    }
    if (last) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4& to = total[(part * 8 + i) * kThreads];
        const float4 v = to;
        to = make_float4(v.x + y[4 * i], v.y + y[4 * i + 1], v.z + y[4 * i + 2], v.w + y[4 * i + 3]);
        y[4 * i] = y[4 * i + 1] = y[4 * i + 2] = y[4 * i + 3] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void run(const WidePlanes& p, int row0, int token0) {
    const int stages = (p.blocks + 1) / 2;
#pragma unroll
    for (int i = 0; i < Stages - 1; ++i) {
      if (i < stages) copy(p, row0, token0, i);
      copies_group();
    }
#pragma unroll
    for (int i = 0; i < Parts * 8; ++i) total[i * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float c[Parts][32], y[Parts][32];
#pragma unroll
    for (int part = 0; part < Parts; ++part)
#pragma unroll
      for (int i = 0; i < 32; ++i) c[part][i] = 0.0f, y[part][i] = 0.0f;
    uint32_t a0[2][Terms][4], a1[2][Terms][4];
    segment = 0, end = segment_begin(1, p.blocks);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      copies_wait_for_groups<Stages - 2>();
      publish_shared();
      __syncthreads();  // stage i is there, and nobody reads stage i - 1 any more
      if (i + Stages - 1 < stages) copy(p, row0, token0, i + Stages - 1);
      copies_group();
      const Stage& s = stage(i);
      fragments(s, 0, a0);
#pragma unroll
      for (int part = 0; part < Parts; ++part) multiply(s, 0, part, a0, c[part]);
      fragments(s, 1, a1);
      bool last = 2 * i + 1 == end;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        products_wait<Parts - 1>(c[part]);
        steps(s, 0, part, last, c[part], y[part]);
        multiply(s, 1, part, a1, c[part]);
      }
      if (last) end = segment_begin(++segment + 1, p.blocks);
      last = 2 * i + 2 == end;
      const bool there = 2 * i + 1 < p.blocks;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        if (part + 1 < Parts) products_wait<1>(c[part]);
        else products_wait<0>(c[part]);
        if (there) steps(s, 1, part, last, c[part], y[part]);
      }
      if (last) end = segment_begin(++segment + 1, p.blocks);
    }
  }

  // put(row, token, value) of this thread's outputs, in the tile.
  template <class Put> __device__ __forceinline__ void results(Put put) const {
#pragma unroll
    for (int i = 0; i < Parts * 8; ++i) {
      const float4 v = total[i * kThreads];
      const int row = group_row + g, token = group_token + 8 * i + 2 * t;
      put(row, token, v.x), put(row, token + 1, v.y), put(row + 8, token, v.z), put(row + 8, token + 1, v.w);
    }
  }
};

}  // namespace strata
