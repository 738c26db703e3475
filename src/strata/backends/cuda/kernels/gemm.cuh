// Products of 8 and more rows with packed weights on int8 tensor cores, in the contract's order.
//
// A thread block computes Rows weight rows x Tokens activation rows. Weights are decoded once per 32-block into shared
// int8, warps multiply 32 x 32 tiles with m16n8k32 (weights are the 16-row operand), and each block's exact integer sum
// takes one chain step in float. Two accumulators per output: the segment's chain and the total.
#pragma once

#include "packed.cuh"

namespace strata {

// int8 m16n8k32 and m16n8k16 with int32 sums; before sm_80 the same fragments go through m8n8k16.
__device__ __forceinline__ void mma_half(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
#else
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b));
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b));
#endif
}

__device__ __forceinline__ void mma_full(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  mma_half(c, a[0], a[1], b0);
  mma_half(c, a[2], a[3], b1);
#endif
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* p) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], const void* p) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

// An mma sum that starts at kMagic leaves the float 12582912 + sum in its bits (|sum| < 2^22: 32 codes of int8 times
// int8 stay under 2^19), so one subtraction replaces the slower conversion from int.
constexpr int kMagic = 0x4b400000;
__device__ __forceinline__ float magic_float(int sum) { return __int_as_float(sum) - 12582912.0f; }

// RowWarps x TokenWarps warps of 32 weight rows x 8 * NTiles tokens. Without `Segmented` (benchmarks only) K is one chain.
template <QuantType T, int RowWarps, int TokenWarps, int NTiles, bool Segmented = true> struct Gemm {
  static constexpr int kRows = 32 * RowWarps, kTokens = 8 * NTiles * TokenWarps, kThreads = 32 * RowWarps * TokenWarps;
  static constexpr int kStage = 4;             // blocks per stage
  static constexpr int kPitch = 32 * kStage + 16;   // bytes of a row: ldmatrix reads eight rows without bank conflicts
  static constexpr int kUnits = kRows * kStage / kThreads;
  static constexpr int kParts = kTokens * kStage * 2;  // 16-byte parts of activation codes a stage
  static constexpr int kPartsEach = (kParts + kThreads - 1) / kThreads;
  static constexpr int kScalesEach = (kTokens * kStage + kThreads - 1) / kThreads;
  static constexpr bool kTwo = kSteps<T> != Steps::one;
  static constexpr bool kHalves = kSteps<T> == Steps::halves;
  using Raw = typename Packed<T>::Raw;

  struct Stage {
    alignas(16) int8_t w[kRows * kPitch];
    alignas(16) int8_t q[kTokens * kPitch];
    float w0[kStage][kRows];
    float w1[kTwo ? kStage : 1][kTwo ? kRows : 1];  // second float scale, or the second sub-scale
    float s0[kHalves ? kStage : 1][kHalves ? kRows : 1];
    float m[kHasMin<T> ? kStage : 1][kHasMin<T> ? kRows : 1];
    alignas(8) float d[kStage][kTokens];
    alignas(8) float sum[kHasMin<T> ? kStage : 1][kHasMin<T> ? kTokens : 1];  // d_a * sum of codes
  };
  static constexpr int kTableBytes = Packed<T>::kTableWords * 4;
  static constexpr int kSharedBytes = kTableBytes + 2 * static_cast<int>(sizeof(Stage));

  // One thread's share of a stage on its way from global to shared memory.
  struct Flight {
    Raw raw[kUnits];
    uint4 q[kPartsEach];
    float d[kScalesEach];
    uint32_t sums[kScalesEach];
  };

  struct Problem {
    const uint8_t* w;
    const int8_t* q;
    const float* d;
    const int16_t* sums;
    float* y;
    int n, blocks, tokens, row0, token0;
  };

  static __device__ __forceinline__ void fetch(Flight& f, const Problem& p, int b0) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int u = threadIdx.x + i * kThreads, row = min(p.row0 + u / kStage, p.n - 1);
      f.raw[i] = Packed<T>::load(p.w, p.n, p.blocks, row, min(b0 + u % kStage, p.blocks - 1));
    }
#pragma unroll
    for (int i = 0; i < kPartsEach; ++i) {
      const int u = threadIdx.x + i * kThreads, token = min(p.token0 + u / (2 * kStage), p.tokens - 1);
      const int part = min(b0 * 2 + u % (2 * kStage), p.blocks * 2 - 1);
      if (u < kParts)
        f.q[i] = *reinterpret_cast<const uint4*>(p.q + static_cast<size_t>(token) * p.blocks * kBlock + part * 16);
    }
#pragma unroll
    for (int i = 0; i < kScalesEach; ++i) {
      const int u = threadIdx.x + i * kThreads;
      if (u >= kTokens * kStage) break;
      const size_t at = static_cast<size_t>(min(p.token0 + u / kStage, p.tokens - 1)) * p.blocks + min(b0 + u % kStage, p.blocks - 1);
      f.d[i] = p.d[at];
      if constexpr (kHasMin<T>) f.sums[i] = reinterpret_cast<const uint32_t*>(p.sums)[at];
    }
  }

  static __device__ __forceinline__ void put(Stage& s, const Flight& f, const uint32_t* table) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int u = threadIdx.x + i * kThreads, row = u / kStage, b = u % kStage;
      uint32_t code[8];
      Packed<T>::template decode<1>(f.raw[i], table, code);
#pragma unroll
      for (int j = 0; j < 8; ++j) code[j] = centre<T>(code[j]);
      uint4* at = reinterpret_cast<uint4*>(s.w + row * kPitch + b * 32);
      at[0] = make_uint4(code[0], code[1], code[2], code[3]);
      at[1] = make_uint4(code[4], code[5], code[6], code[7]);
      const Scales w = Packed<T>::scales(f.raw[i]);
      s.w0[b][row] = w.w0;
      if constexpr (kSteps<T> == Steps::scale16) s.w1[b][row] = w.w1;
      if constexpr (kHalves) s.s0[b][row] = static_cast<float>(w.s0), s.w1[b][row] = static_cast<float>(w.s1);
      if constexpr (kHasMin<T>) s.m[b][row] = w.m;
    }
#pragma unroll
    for (int i = 0; i < kPartsEach; ++i) {
      const int u = threadIdx.x + i * kThreads;
      if (u < kParts) *reinterpret_cast<uint4*>(s.q + u / (2 * kStage) * kPitch + u % (2 * kStage) * 16) = f.q[i];
    }
#pragma unroll
    for (int i = 0; i < kScalesEach; ++i) {
      const int u = threadIdx.x + i * kThreads;
      if (u >= kTokens * kStage) break;
      s.d[u % kStage][u / kStage] = f.d[i];
      if constexpr (kHasMin<T>) {
        const int both = static_cast<int16_t>(f.sums[i]) + (static_cast<int32_t>(f.sums[i]) >> 16);
        s.sum[u % kStage][u / kStage] = static_cast<float>(both) * f.d[i];
      }
    }
  }

  // Chain steps of one 32-block for this warp's tile.
  static __device__ __forceinline__ void block(const Stage& s, int b, float (&y)[2][NTiles][4]) {
    const int lane = lane_id(), g = lane / 4, t = lane % 4;
    const int row0 = warp_id() % RowWarps * 32, token0 = warp_id() / RowWarps * 8 * NTiles;
    uint32_t a[2][4], q[NTiles][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_matrices(a[i], s.w + (row0 + 16 * i + lane % 16) * kPitch + b * 32 + lane / 16 * 16);
    if constexpr (NTiles == 1) {
      load_matrices(q[0], s.q + (token0 + lane % 8) * kPitch + b * 32 + lane / 8 % 2 * 16);
    } else {
#pragma unroll
      for (int j = 0; j < NTiles; j += 2) {
        uint32_t two[4];
        load_matrices(two, s.q + (token0 + 8 * j + lane / 16 * 8 + lane % 8) * kPitch + b * 32 + lane / 8 % 2 * 16);
        q[j][0] = two[0], q[j][1] = two[1], q[j + 1][0] = two[2], q[j + 1][1] = two[3];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float w0[2], w1[2], s0[2], m[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + 16 * i + g + 8 * h;
        w0[h] = s.w0[b][row];
        if constexpr (kTwo) w1[h] = s.w1[b][row];
        if constexpr (kHalves) s0[h] = s.s0[b][row];
        if constexpr (kHasMin<T>) m[h] = s.m[b][row];
      }
#pragma unroll
      for (int j = 0; j < NTiles; ++j) {
        const int token = token0 + 8 * j + 2 * t;
        const float2 d = *reinterpret_cast<const float2*>(&s.d[b][token]);
        float2 sum = make_float2(0.0f, 0.0f);
        if constexpr (kHasMin<T>) sum = *reinterpret_cast<const float2*>(&s.sum[b][token]);
        int c[4] = {kMagic, kMagic, kMagic, kMagic}, c1[4] = {kMagic, kMagic, kMagic, kMagic};
        if constexpr (kTwo) {
          mma_half(c, a[i][0], a[i][1], q[j][0]);
          mma_half(c1, a[i][2], a[i][3], q[j][1]);
        } else {
          mma_full(c, a[i], q[j][0], q[j][1]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float d_a = e % 2 ? d.y : d.x;
          const int h = e / 2;
          float& out = y[i][j][e];
          if constexpr (kSteps<T> == Steps::scale16) {
            out = fma32(magic_float(c[e]), w0[h] * d_a, out);
            out = fma32(magic_float(c1[e]), w1[h] * d_a, out);
          } else if constexpr (kHalves) {  // products and their sum stay below 2^24: exact
            out = fma32(fma32(magic_float(c1[e]), w1[h], magic_float(c[e]) * s0[h]), w0[h] * d_a, out);
          } else {
            out = fma32(magic_float(c[e]), w0[h] * d_a, out);
          }
          if constexpr (kHasMin<T>) out = fma32(m[h], e % 2 ? sum.y : sum.x, out);
        }
      }
    }
  }

  static __device__ __forceinline__ void run(const Problem& p) {
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t* table = reinterpret_cast<uint32_t*>(shared);
    Stage* stages = reinterpret_cast<Stage*>(shared + kTableBytes);
    Packed<T>::template fill<1>(table);
    dependency_wait();
    Flight flight;
    fetch(flight, p, 0);
    __syncthreads();
    put(stages[0], flight, table);
    __syncthreads();
    float y[2][NTiles][4] = {}, total[2][NTiles][4] = {};
    const int segs = segments(p.blocks);
    int segment = 0, end = segment_begin(1, p.blocks);
#pragma unroll 1
    for (int b0 = 0; b0 < p.blocks; b0 += kStage) {
      const Stage& s = stages[b0 / kStage & 1];
      const bool more = b0 + kStage < p.blocks;
      if (more) fetch(flight, p, b0 + kStage);
#pragma unroll
      for (int b = 0; b < kStage; ++b) {
        if (b0 + b < p.blocks) block(s, b, y);
        if (Segmented && b0 + b + 1 == end) {
          add(total, y);
          ++segment;
          end = segment < segs ? segment_begin(segment + 1, p.blocks) : -1;
        }
      }
      if (more) put(stages[(b0 / kStage & 1) ^ 1], flight, table);
      __syncthreads();
    }
    store(p, Segmented ? total : y);
  }

  // Closes a segment.
  static __device__ __forceinline__ void add(float (&total)[2][NTiles][4], float (&y)[2][NTiles][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < NTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          total[i][j][e] += y[i][j][e];
          y[i][j][e] = 0.0f;
        }
  }

  static __device__ __forceinline__ void store(const Problem& p, const float (&total)[2][NTiles][4]) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int row0 = p.row0 + warp_id() % RowWarps * 32, token0 = p.token0 + warp_id() / RowWarps * 8 * NTiles;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < NTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = row0 + 16 * i + g + 8 * (e / 2), token = token0 + 8 * j + 2 * t + e % 2;
          if (row < p.n && token < p.tokens) p.y[static_cast<size_t>(token) * p.n + row] = total[i][j][e];
        }
  }
};

}  // namespace strata
