// Products of 8 and more rows with packed weights on int8 tensor cores, in the contract's order.
//
// A thread block computes Rows weight rows x Tokens activation rows. Weights are decoded once per 32-block into shared
// int8, warps multiply 32 x 32 tiles with m16n8k32 (weights are the 16-row operand), and each block's exact integer sum
// takes one chain step in float. The chain lives in registers, the total over segments there too or in shared memory.
#pragma once

#include "packed.cuh"

namespace strata {

// An mma sum that starts at kMagic leaves the float 12582912 + sum in its bits (|sum| < 2^22: 32 codes of int8 times
// int8 stay under 2^19), so one subtraction replaces the slower conversion from int.
constexpr int kMagic = 0x4b400000;
__device__ __forceinline__ float magic_float(int sum) { return __int_as_float(sum) - 12582912.0f; }

// Blocks of a stage: a whole segment, or a part of it, where segments are even; else 4.
constexpr int stage_blocks(int blocks, bool segmented) {
  const int segs = segmented ? segments(blocks) : segments(blocks) * (blocks % segments(blocks) == 0);
  if (segs == 0 || blocks % segs != 0) return 4;
  const int length = blocks / segs;
  for (int s = 8; s > 2; --s)
    if (length % s == 0) return s;
  return 4;
}

// RowWarps x TokenWarps warps of 32 weight rows x 8 * NTiles tokens, K = 32 * Blocks. StageBlocks: blocks of a stage; 0: whole
// segments where they are even. Held: totals are registers. Without `Segmented` (benchmarks only) K is one chain.
template <QuantType T, int Blocks, int RowWarps, int TokenWarps, int NTiles, bool Segmented = true, int StageBlocks = 0, bool Held = false>
struct Gemm {
  static constexpr int kRows = 32 * RowWarps, kTokens = 8 * NTiles * TokenWarps, kThreads = 32 * RowWarps * TokenWarps;
  static constexpr int kSegs = segments(Blocks);
  static constexpr int kStage = StageBlocks > 0 ? StageBlocks : stage_blocks(Blocks, Segmented);
  static constexpr bool kEven = Blocks % kSegs == 0 && Blocks / kSegs % kStage == 0;  // segments end with a stage
  static constexpr int kPitch = 32 * kStage + 16;
  static_assert(kPitch / 16 % 2 == 1, "ldmatrix reads eight rows without bank conflicts");
  static constexpr int kParts = kTokens * kStage * 2;  // 16-byte parts of activation codes a stage
  static constexpr int kUnits = (kRows * kStage + kThreads - 1) / kThreads;
  static constexpr bool kTwo = kSteps<T> != Steps::one;
  static constexpr bool kHalves = kSteps<T> == Steps::halves;
  static constexpr bool kTwoMins = kHalves && kHasMin<T>;  // integers, of both halves
  using Raw = typename Packed<T>::Raw;

  struct Stage {
    alignas(16) int8_t w[kRows * kPitch];
    alignas(16) int8_t q[kTokens * kPitch];
    float w0[kStage][kRows];
    float w1[kTwo ? kStage : 1][kTwo ? kRows : 1];  // second float scale, or the second sub-scale
    float s0[kHalves ? kStage : 1][kHalves ? kRows : 1];
    float m[kHasMin<T> ? kStage : 1][kHasMin<T> ? kRows : 1];
    float m0[kTwoMins ? kStage : 1][kTwoMins ? kRows : 1], m1[kTwoMins ? kStage : 1][kTwoMins ? kRows : 1];
    alignas(8) float d[kStage][kTokens];
    alignas(8) float sum[kHasMin<T> ? kStage : 1][kHasMin<T> ? kTokens : 1];  // d_a * sum of codes, or the first half's sum
    alignas(8) float sum1[kTwoMins ? kStage : 1][kTwoMins ? kTokens : 1];     // and the second's
  };
  static constexpr int kTableBytes = Packed<T>::kTableWords * 4;
  static constexpr int kTotals = 2 * NTiles;  // float4 a thread
  static constexpr int kTotalBytes = Segmented && !Held ? kTotals * kThreads * 16 : 0;
  static constexpr int kSharedBytes = kTableBytes + 2 * static_cast<int>(sizeof(Stage)) + kTotalBytes;

  struct Problem {
    const uint8_t* w;
    const int8_t* q;
    const float* d;
    const int16_t* sums;
    float* y;
    int n, tokens, row0, token0;
  };

  // q8 rows.
  struct Activations {
    const int8_t* q;
    const float* d;
    const int16_t* sums;
  };

  // find(r): where row r of the tile lies, in planes of n rows.
  template <class Find> static __device__ __forceinline__ void fetch_weights(Raw (&raw)[kUnits], int n, Find find, int b0) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int u = threadIdx.x + i * kThreads, b = b0 + u % kStage;
      if (u >= kRows * kStage) break;
      const PackedRow from = find(u / kStage);
      raw[i] = Packed<T>::load(from.planes, n, Blocks, from.row, Blocks % kStage == 0 ? b : min(b, Blocks - 1));
    }
  }

  static __device__ __forceinline__ void put_weights(Stage& s, const Raw (&raw)[kUnits], const uint32_t* table) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int u = threadIdx.x + i * kThreads, row = u / kStage, b = u % kStage;
      if (u >= kRows * kStage) break;
      uint32_t code[8];
      Packed<T>::template decode<1>(raw[i], table, code);
#pragma unroll
      for (int j = 0; j < 8; ++j) code[j] = centre<T>(code[j]);
      uint4* at = reinterpret_cast<uint4*>(s.w + row * kPitch + b * 32);
      at[0] = make_uint4(code[0], code[1], code[2], code[3]);
      at[1] = make_uint4(code[4], code[5], code[6], code[7]);
      const Scales w = Packed<T>::scales(raw[i]);
      s.w0[b][row] = w.w0;
      if constexpr (kSteps<T> == Steps::scale16) s.w1[b][row] = w.w1;
      if constexpr (kHalves) s.s0[b][row] = static_cast<float>(w.s0), s.w1[b][row] = static_cast<float>(w.s1);
      if constexpr (kHasMin<T>) s.m[b][row] = w.m;
      if constexpr (kTwoMins) s.m0[b][row] = static_cast<float>(w.m0), s.m1[b][row] = static_cast<float>(w.m1);
    }
  }

  // token(t): the q8 row of the tile's token t.
  template <class Token> static __device__ __forceinline__ void copy_activations(Stage& s, const Activations& x, Token token_of, int b0) {
#pragma unroll
    for (int i = 0; i < (kParts + kThreads - 1) / kThreads; ++i) {
      const int u = threadIdx.x + i * kThreads, token = u / (2 * kStage), part = u % (2 * kStage);
      if (u >= kParts || (Blocks % kStage != 0 && b0 + part / 2 >= Blocks)) continue;
      const size_t from = static_cast<size_t>(token_of(token)) * (Blocks * 32) + b0 * 32 + part * 16;
      copy_async<16>(s.q + token * kPitch + part * 16, x.q + from);
    }
#pragma unroll
    for (int i = 0; i < (kTokens * kStage + kThreads - 1) / kThreads; ++i) {
      const int u = threadIdx.x + i * kThreads, token = u / kStage, b = u % kStage;
      if (u >= kTokens * kStage || (Blocks % kStage != 0 && b0 + b >= Blocks)) continue;
      const size_t from = static_cast<size_t>(token_of(token)) * Blocks + b0 + b;
      if constexpr (kHasMin<T>) {
        const uint32_t both = reinterpret_cast<const uint32_t*>(x.sums)[from];
        const int low = static_cast<int16_t>(both), high = static_cast<int32_t>(both) >> 16;
        s.d[b][token] = x.d[from];
        if constexpr (kTwoMins) {
          s.sum[b][token] = static_cast<float>(low), s.sum1[b][token] = static_cast<float>(high);
        } else {
          s.sum[b][token] = static_cast<float>(low + high) * x.d[from];
        }
      } else {
        copy_async<4>(&s.d[b][token], x.d + from);
      }
    }
  }

  // Chain steps of one 32-block for this warp's tile. The first block of a segment multiplies: a chain that starts at -0
  // instead of +0 gives the same total, which starts at +0.
  static __device__ __forceinline__ void block(const Stage& s, int b, bool first, float (&y)[2][NTiles][4]) {
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
      float w0[2], w1[2], s0[2], m[2], m0[2], m1[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + 16 * i + g + 8 * h;
        w0[h] = s.w0[b][row];
        if constexpr (kTwo) w1[h] = s.w1[b][row];
        if constexpr (kHalves) s0[h] = s.s0[b][row];
        if constexpr (kHasMin<T>) m[h] = s.m[b][row];
        if constexpr (kTwoMins) m0[h] = s.m0[b][row], m1[h] = s.m1[b][row];
      }
#pragma unroll
      for (int j = 0; j < NTiles; ++j) {
        const int token = token0 + 8 * j + 2 * t;
        const float2 d = *reinterpret_cast<const float2*>(&s.d[b][token]);
        float2 sum = make_float2(0.0f, 0.0f), sum1 = make_float2(0.0f, 0.0f);
        if constexpr (kHasMin<T>) sum = *reinterpret_cast<const float2*>(&s.sum[b][token]);
        if constexpr (kTwoMins) sum1 = *reinterpret_cast<const float2*>(&s.sum1[b][token]);
        int c[4], c1[4];
        if constexpr (kTwo) {
          mma_half(c, a[i][0], a[i][1], q[j][0], kMagic);
          mma_half(c1, a[i][2], a[i][3], q[j][1], kMagic);
        } else {
          mma_full(c, a[i], q[j][0], q[j][1], kMagic);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float d_a = e % 2 ? d.y : d.x;
          const int h = e / 2;
          float& out = y[i][j][e];
          const auto chain = [first](float sum, float w, float before) { return first ? sum * w : fma32(sum, w, before); };
          if constexpr (kSteps<T> == Steps::scale16) {
            out = chain(magic_float(c[e]), w0[h] * d_a, out);
            out = fma32(magic_float(c1[e]), w1[h] * d_a, out);
          } else if constexpr (kHalves) {  // products and their sum stay below 2^24: exact
            out = chain(fma32(magic_float(c1[e]), w1[h], magic_float(c[e]) * s0[h]), w0[h] * d_a, out);
          } else {
            out = chain(magic_float(c[e]), w0[h] * d_a, out);
          }
          if constexpr (kTwoMins) {  // an integer below 2^17
            out = fma32(fma32(m1[h], e % 2 ? sum1.y : sum1.x, m0[h] * (e % 2 ? sum.y : sum.x)), m[h] * d_a, out);
          } else if constexpr (kHasMin<T>) {
            out = fma32(m[h], e % 2 ? sum.y : sum.x, out);
          }
        }
      }
    }
  }

  // Sums of the tile, in registers or with `Segmented` and without `Held` where `total` lies: put(row, token, four) of this thread's,
  // row and row + 8 (z, w) at token and token + 1.
  template <class Find, class Token, class Put>
  static __device__ __forceinline__ void run(uint8_t* shared, int n, Find find, const Activations& x, Token token, Put put) {
    uint32_t* table = reinterpret_cast<uint32_t*>(shared);
    Stage* stages = reinterpret_cast<Stage*>(shared + kTableBytes);
    float4* total = reinterpret_cast<float4*>(stages + 2) + threadIdx.x;
    float held[Held ? 2 * NTiles : 1][4] = {};
    Packed<T>::template fill<1>(table);
    Raw raw[kUnits];
    fetch_weights(raw, n, find, 0);
    copy_activations(stages[0], x, token, 0);
    if constexpr (Segmented && !Held) {
#pragma unroll
      for (int i = 0; i < kTotals; ++i) total[i * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncthreads();  // the table
    put_weights(stages[0], raw, table);
    copies_wait();
    __syncthreads();
    float y[2][NTiles][4] = {};
    int end = segment_begin(1, Blocks), segment = 0;
#pragma unroll 1
    for (int b0 = 0, at = 0; b0 < Blocks; b0 += kStage, at ^= 1) {
      const bool more = b0 + kStage < Blocks;
      if (more) {
        fetch_weights(raw, n, find, b0 + kStage);
        copy_activations(stages[at ^ 1], x, token, b0 + kStage);
      }
      if constexpr (kEven && Segmented && !Held) {  // unrolled; with totals it would spill
        constexpr int length = Blocks / kSegs;
        if constexpr (length == kStage) {
#pragma unroll
          for (int b = 0; b < kStage; ++b) block(stages[at], b, b == 0, y);
          close(total, held, y);
        } else {
#pragma unroll
          for (int b = 0; b < kStage; ++b) block(stages[at], b, false, y);
          if ((b0 + kStage) % length == 0) close_and_clear(total, held, y);
        }
      } else {
#pragma unroll 1
        for (int b = 0; b < kStage && b0 + b < Blocks; ++b) {
          block(stages[at], b, false, y);
          if (Segmented && b0 + b + 1 == end) {
            close_and_clear(total, held, y);
            end = segment_begin(++segment + 1, Blocks);
          }
        }
      }
      if (more) put_weights(stages[at ^ 1], raw, table);
      copies_wait();
      __syncthreads();
    }
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int row0 = warp_id() % RowWarps * 32, token0 = warp_id() / RowWarps * 8 * NTiles;
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
      const float(&x4)[4] = Held ? held[Held ? i : 0] : y[i / NTiles][i % NTiles];
      float4 v = make_float4(x4[0], x4[1], x4[2], x4[3]);
      if constexpr (Segmented && !Held) v = total[i * kThreads];
      put(row0 + 16 * (i / NTiles) + g, token0 + 8 * (i % NTiles) + 2 * t, v);
    }
  }

  static __device__ __forceinline__ void run(const Problem& p) {
    STRATA_DYNAMIC_SHARED(shared);
    dependency_wait();
    dependency_launch();
    const auto row = [&](int r) { return PackedRow{p.w, min(p.row0 + r, p.n - 1)}; };
    const auto token = [&](int i) { return min(p.token0 + i, p.tokens - 1); };
    run(shared, p.n, row, {p.q, p.d, p.sums}, token, [&](int r, int i, const float4& v) { store_results(p.y, p.n, p.tokens, p.row0 + r, p.token0 + i, v); });
  }

  // Adds a segment's chains to the totals.
  static __device__ __forceinline__ void close(float4* total, float (&held)[Held ? 2 * NTiles : 1][4], const float (&y)[2][NTiles][4]) {
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
      const float(&x)[4] = y[i / NTiles][i % NTiles];
      if constexpr (Held) {
#pragma unroll
        for (int e = 0; e < 4; ++e) held[i][e] += x[e];
      } else {
        const float4 v = total[i * kThreads];
        total[i * kThreads] = make_float4(v.x + x[0], v.y + x[1], v.z + x[2], v.w + x[3]);
      }
    }
  }

  static __device__ __forceinline__ void close_and_clear(float4* total, float (&held)[Held ? 2 * NTiles : 1][4], float (&y)[2][NTiles][4]) {
    close(total, held, y);
#pragma unroll
    for (int i = 0; i < kTotals; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[i / NTiles][i % NTiles][e] = 0.0f;
  }
};

}  // namespace strata
