// Products of prompt chunks with quantised weights on f16 tensor cores, in the contract's order.
//
// A 32-block's exact integer sum is what f16 products with float sums give: codes, or codes times their integer sub-scale, are f16
// integers (Q6_K's take 12 bits and are the sum of two), and sums stay below 2^24. It arrives as a float, so that a chain step is two
// float operations. Tokens come from planes that widen.cu makes, weights from planes of widen.cu too, or are decoded here:
//   codes  uint8 [rows][k]      weight codes + 128              x     f16 [tokens][k]          activation codes, in slot_order
//   w      float [blocks][rows] their scales, in pair_order     d     float [blocks][tokens]   activation scales, in four_order
//   s      f16 x 2              two sub-scales                  sum   float                    d_a * sum of codes, or
//   m      float                minimums, or their factor             int16 x 2                sums of codes of both halves
//   mins   f16 x 2              two minimums
// Sub: blocks of half the codes that a block is taken as (2 where a format has float scales per 16).
#pragma once

#include "wide_steps.cuh"

namespace strata {

// RowGroups x TokenGroups warpgroups of 64 rows x 64 * Parts tokens; F: WideFormat.
template <class F, int RowGroups, int TokenGroups, int Parts, int Stages> struct Wide {
  static constexpr int kGroups = RowGroups * TokenGroups, kThreads = 128 * kGroups;
  static constexpr int kRows = 64 * RowGroups, kTokens = 64 * Parts * TokenGroups;
  static constexpr int kPitch = 96;  // bytes of a row of codes: 64 and padding against bank conflicts
  static constexpr int kPasses = 2 * F::kSub;

  struct Stage {
    uint8_t x[kTokens * 128];
    uint8_t codes[kRows * kPitch];
    float w[kPasses][kRows];
    float d[2][kTokens];
    uint32_t s[F::kHalves ? 2 : 1][F::kHalves ? kRows : 4];
    float m[F::kMin ? 2 : 1][F::kMin ? kRows : 4];
    uint32_t sum[F::kMin ? 2 : 1][F::kMin ? kTokens : 4];
    uint32_t mins[F::kMin == 2 ? 2 : 1][F::kMin == 2 ? kRows : 4];
  };
  static constexpr int kStageBytes = (static_cast<int>(sizeof(Stage)) + 1023) / 1024 * 1024;
  static constexpr int kTotalBytes = Parts * 32 * 4 * kThreads;
  static constexpr int kSharedBytes = 1024 + Stages * kStageBytes + kTotalBytes;

  uint8_t* base;
  float4* total;
  int group_row, group_token, g, t;

  __device__ __forceinline__ Wide(uint8_t* shared) {
    base = shared + (1024 - shared_offset(shared) % 1024) % 1024;
    total = reinterpret_cast<float4*>(base + Stages * kStageBytes) + threadIdx.x;
    const int warp = warp_id();
    group_row = warp / 4 % RowGroups * 64 + warp % 4 * 16, group_token = warp / 4 / RowGroups * 64 * Parts;
    g = lane_id() / 4, t = lane_id() % 4;
  }
  __device__ __forceinline__ Stage& stage(int i) const { return *reinterpret_cast<Stage*>(base + i % Stages * kStageBytes); }

  using Fragments = uint32_t[2][F::kTerms][4];  // two slices of 16 values

  // This thread's fragments of a pass: a block of the stage's two, or half of its codes.
  __device__ __forceinline__ void fragments(const Stage& s, int pass, Fragments& a) const {
    const int b = pass / F::kSub;
    uint2 row[2];
    uint32_t scale[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h] = *reinterpret_cast<const uint2*>(s.codes + (group_row + g + 8 * h) * kPitch + b * 32 + 8 * t);
    if constexpr (F::kHalves) {
      const uint2 both = *reinterpret_cast<const uint2*>(&s.s[b][group_row + 2 * g]);
      scale[0] = __byte_perm(both.x, 0, t < 2 ? 0x1010 : 0x3232), scale[1] = __byte_perm(both.y, 0, t < 2 ? 0x1010 : 0x3232);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int slice = i / 4, h = i % 2, upper = i / 2 % 2;
      const uint32_t biased = __byte_perm(slice ? row[h].y : row[h].x, 0x64646464u, upper ? 0x4342 : 0x4140);  // 1024 + 128 + code
      uint32_t value = add_halves(biased, 0xe480e480u);
      if constexpr (F::kSub == 2)
        if (t / 2 != pass % 2) value = 0;
      if constexpr (F::kHalves) {
        const uint32_t product = multiply_halves(value, scale[h]);
        if constexpr (F::kTerms == 2) a[slice][1][2 * upper + h] = fma_halves(value, scale[h], product ^ 0x80008000u);
        value = product;
      }
      a[slice][0][2 * upper + h] = value;
    }
  }

  // Starts the products of part `part` of a pass.
  __device__ __forceinline__ void multiply(const Stage& s, int pass, int part, const Fragments& a, float (&c)[32]) const {
    products_fence();
    const uint8_t* x = s.x + (group_token + 64 * part) * 128;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < F::kTerms; ++e) group_product(c, a[i][e], x, pass / F::kSub * 2 + i, i + e > 0);
    products_commit();
  }

  // The chain steps of a part.
  __device__ __forceinline__ void steps(const Stage& s, int pass, int part, const float (&c)[32], float (&y)[32]) const {
    const int b = pass / F::kSub, row = group_row + 2 * g;
    const float2 w = *reinterpret_cast<const float2*>(&s.w[pass][row]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 d = *reinterpret_cast<const float4*>(&s.d[b][group_token + 64 * part + 16 * j + 4 * t]);
      const float scale[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& out = y[8 * j + e];
        out = fma32(c[8 * j + e], (e & 2 ? w.y : w.x) * scale[e / 4 * 2 + e % 2], out);
      }
    }
    if constexpr (F::kMin == 1)
      if (pass % F::kSub == F::kSub - 1) minimum(s, b, part, y);
    if constexpr (F::kMin == 2) minimums(s, b, part, y);
  }

  __device__ __forceinline__ void minimum(const Stage& s, int b, int part, float (&y)[32]) const {
    const float2 m = *reinterpret_cast<const float2*>(&s.m[b][group_row + 2 * g]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 u = *reinterpret_cast<const uint4*>(&s.sum[b][group_token + 64 * part + 16 * j + 4 * t]);
      const float sum[4] = {bits_float(u.x), bits_float(u.y), bits_float(u.z), bits_float(u.w)};
#pragma unroll
      for (int e = 0; e < 8; ++e) y[8 * j + e] = fma32(e & 2 ? m.y : m.x, sum[e / 4 * 2 + e % 2], y[8 * j + e]);
    }
  }

  __device__ __forceinline__ void minimums(const Stage& s, int b, int part, float (&y)[32]) const {
    const int row = group_row + 2 * g;
    const float2 m = *reinterpret_cast<const float2*>(&s.m[b][row]);
    const uint2 mins = *reinterpret_cast<const uint2*>(&s.mins[b][row]);
    const auto half = [](uint32_t v) { return half_float(static_cast<uint16_t>(v)); };
    const float first[2] = {half(mins.x), half(mins.y)}, second[2] = {half(mins.x >> 16), half(mins.y >> 16)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = group_token + 64 * part + 16 * j + 4 * t;
      const uint4 u = *reinterpret_cast<const uint4*>(&s.sum[b][at]);
      const float4 d = *reinterpret_cast<const float4*>(&s.d[b][at]);
      const uint32_t both[4] = {u.x, u.y, u.z, u.w};
      const float scale[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int column = e / 4 * 2 + e % 2, h = e / 2 % 2;
        const float low = static_cast<int16_t>(both[column]), high = static_cast<int32_t>(both[column]) >> 16;
        const float sum = fma32(second[h], high, first[h] * low);  // an integer below 2^17
        y[8 * j + e] = fma32(sum, (h ? m.y : m.x) * scale[column], y[8 * j + e]);
      }
    }
  }

  // A segment's end: the chain joins the total.
  __device__ __forceinline__ void close(int part, float (&y)[32]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float4& to = total[(part * 8 + i) * kThreads];
      const float4 v = to;
      to = make_float4(v.x + y[4 * i], v.y + y[4 * i + 1], v.z + y[4 * i + 2], v.w + y[4 * i + 3]);
      y[4 * i] = y[4 * i + 1] = y[4 * i + 2] = y[4 * i + 3] = 0.0f;
    }
  }

  // Blocks 2 i and 2 i + 1 of this group's first Active parts.
  template <int Active>
  __device__ __forceinline__ void two_blocks(const Stage& s, int i, int blocks, int& segment, int& end, float (&c)[Parts][32],
                                             float (&y)[Parts][32]) const {
    Fragments a[2];
    fragments(s, 0, a[0]);
#pragma unroll
    for (int part = 0; part < Active; ++part) multiply(s, 0, part, a[0], c[part]);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool more = pass + 1 < kPasses;  // nothing may be in flight where the loop turns
      if (more) fragments(s, pass + 1, a[(pass + 1) % 2]);
      const int block = 2 * i + pass / F::kSub;
      const bool last = pass % F::kSub == F::kSub - 1 && block + 1 == end;
#pragma unroll
      for (int part = 0; part < Active; ++part) {
        if (more || part + 1 < Active) {
          products_wait<Active - 1>(c[part]);
        } else {
          products_wait<0>(c[part]);
        }
        if (pass < F::kSub || block < blocks) steps(s, pass, part, c[part], y[part]);
        if (last) close(part, y[part]);
        if (more) multiply(s, pass + 1, part, a[(pass + 1) % 2], c[part]);
      }
      if (last) end = segment_begin(++segment + 1, blocks);
    }
  }

  // Rows: begin(tile, stage, i) starts to bring blocks 2 i and 2 i + 1, finish(tile, stage, i) has them there but for copies; it is called
  // Rows::kLead stages after. Tokens: copy(tile, stage, i).
  template <int Active, class Rows, class Tokens> __device__ __forceinline__ void run(Rows& rows, Tokens& tokens, int blocks) {
    const int stages = (blocks + 1) / 2;
    rows.first(*this, stages);
#pragma unroll
    for (int i = 0; i < Stages - 1; ++i) {
      if (i < stages) rows.copy(*this, stage(i), i), tokens.copy(*this, stage(i), i);
      copies_group();
    }
    float c[Parts][32], y[Parts][32];
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
#pragma unroll
      for (int i = 0; i < 32; ++i) c[part][i] = 0.0f, y[part][i] = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) total[(part * 8 + i) * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    int segment = 0, end = segment_begin(1, blocks);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      copies_wait_for_groups<Stages - 2>();
      publish_shared();
      __syncthreads();  // stage i is there, and nobody reads stage i - 1 any more
      if (i + Stages - 1 < stages) rows.copy(*this, stage(i + Stages - 1), i + Stages - 1), tokens.copy(*this, stage(i + Stages - 1), i + Stages - 1);
      copies_group();
      if (i + 1 < stages) rows.fetch(*this, i + 1);
      if constexpr (Active > 0) two_blocks<Active>(stage(i), i, blocks, segment, end, c, y);
      if (i + 1 < stages) rows.put(*this, stage(i + 1), i + 1);
    }
  }

  // put(row, token, four) of this thread's outputs in the tile: row and row + 8 (z, w) at token and token + 1.
  template <class Put> __device__ __forceinline__ void results(int active, Put put) const {
#pragma unroll
    for (int i = 0; i < Parts * 8; ++i) {
      if (i / 8 >= active) break;
      put(group_row + g, group_token + 8 * i + 2 * t, total[i * kThreads]);
    }
  }
};

}  // namespace strata
