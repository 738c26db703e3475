// Products of prompt chunks with quantised weights on f16 tensor cores, in the contract's order.
//
// A 32-block's exact integer sum is what f16 products with float sums give: codes, or codes times their integer sub-scale, are f16
// integers (Q6_K's take 12 bits and are the sum of two), and sums stay below 2^24. It arrives as a float, so that a chain step is two
// float operations. Tokens come from images that widen.cu makes, weights from images of widen.cu too, or are decoded here.
#pragma once

#include "wide_steps.cuh"

namespace strata {

// RowGroups x TokenGroups warpgroups of 64 rows x 64 * Parts tokens; F: WideFormat. Depth: images of two blocks a stage. Held: totals of
// the first `Held` parts are registers, the others' lie in shared memory.
template <class F, int RowGroups, int TokenGroups, int Parts, int Depth, int Stages, int Held = 0> struct Wide {
  static constexpr int kRowGroups = RowGroups, kSlabs = Parts * TokenGroups, kThreads = 128 * RowGroups * TokenGroups;
  static constexpr int kRows = 64 * RowGroups, kTokens = 64 * kSlabs;
  static constexpr int kDepth = Depth, kPasses = 2 * F::kSub * Depth;
  using Image = RowImage<F>;

  struct Stage {
    TokenImage tokens[Depth][kSlabs];
    Image rows[Depth][RowGroups];
  };
  static_assert(sizeof(TokenImage) % 1024 == 0, "images of tokens lie on borders of 1,024 bytes, which group_product asks for");
  static constexpr int kStageBytes = (static_cast<int>(sizeof(Stage)) + 1023) / 1024 * 1024;
  static constexpr int kTotalBytes = (Parts - Held) * 32 * 4 * kThreads;
  static constexpr int kSharedBytes = 2048 + Stages * kStageBytes + kTotalBytes;

  uint8_t* base;
  uint64_t* arrived;  // a barrier a stage
  float4* total;
  float held[Held > 0 ? Held : 1][32];
  int row_group, group_row, slab, g, t;

  __device__ __forceinline__ Wide(uint8_t* shared) {
    arrived = reinterpret_cast<uint64_t*>(shared);
    base = shared + 1024 + (1024 - shared_offset(shared) % 1024) % 1024;
    total = reinterpret_cast<float4*>(base + Stages * kStageBytes) + threadIdx.x;
    const int warp = warp_id();
    row_group = warp / 4 % RowGroups, group_row = warp % 4 * 16, slab = warp / 4 / RowGroups * Parts;
    g = lane_id() / 4, t = lane_id() % 4;
  }
  __device__ __forceinline__ Stage& stage(int i) const { return *reinterpret_cast<Stage*>(base + i % Stages * kStageBytes); }
  __device__ __forceinline__ int group_token() const { return slab * kSlab; }

  using Fragments = uint32_t[2][F::kTerms][4];  // two slices of 16 values

  // This thread's fragments of a pass: a block of the stage's two, or half of its codes.
  __device__ __forceinline__ void fragments(const Stage& s, int pass, Fragments& a) const {
    const Image& image = s.rows[pass / (2 * F::kSub)][row_group];
    const int b = pass / F::kSub % 2;
    uint2 row[2];
    uint32_t scale[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h] = *reinterpret_cast<const uint2*>(image.codes + code_offset(group_row + g + 8 * h, b) + 8 * t);
    if constexpr (F::kHalves) {
      const uint2 both = *reinterpret_cast<const uint2*>(&image.line[Image::kS + b][group_row + 2 * g]);
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
    const uint8_t* x = s.tokens[pass / (2 * F::kSub)][slab + part].x;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < F::kTerms; ++e) group_product(c, a[i][e], x, pass / F::kSub % 2 * 2 + i, i + e > 0);
    products_commit();
  }

  // The chain steps of a part.
  __device__ __forceinline__ void steps(const Stage& s, int pass, int part, const float (&c)[32], float (&y)[32]) const {
    const int b = pass / F::kSub % 2;
    const Image& image = s.rows[pass / (2 * F::kSub)][row_group];
    const TokenImage& tokens = s.tokens[pass / (2 * F::kSub)][slab + part];
    const float2 w = *reinterpret_cast<const float2*>(&image.line[pass % (2 * F::kSub)][group_row + 2 * g]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 d = *reinterpret_cast<const float4*>(&tokens.d[b][16 * j + 4 * t]);
      const float scale[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& out = y[8 * j + e];
        out = fma32(c[8 * j + e], (e & 2 ? w.y : w.x) * scale[e / 4 * 2 + e % 2], out);
      }
    }
    if constexpr (F::kMin == 1)
      if (pass % F::kSub == F::kSub - 1) minimum(image, tokens, b, y);
    if constexpr (F::kMin == 2) minimums(image, tokens, b, y);
  }

  __device__ __forceinline__ void minimum(const Image& image, const TokenImage& tokens, int b, float (&y)[32]) const {
    const float2 m = *reinterpret_cast<const float2*>(&image.line[Image::kM + b][group_row + 2 * g]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 u = *reinterpret_cast<const uint4*>(&tokens.sum[b][16 * j + 4 * t]);
      const float sum[4] = {bits_float(u.x), bits_float(u.y), bits_float(u.z), bits_float(u.w)};
#pragma unroll
      for (int e = 0; e < 8; ++e) y[8 * j + e] = fma32(e & 2 ? m.y : m.x, sum[e / 4 * 2 + e % 2], y[8 * j + e]);
    }
  }

  __device__ __forceinline__ void minimums(const Image& image, const TokenImage& tokens, int b, float (&y)[32]) const {
    const int row = group_row + 2 * g;
    const float2 m = *reinterpret_cast<const float2*>(&image.line[Image::kM + b][row]);
    const uint2 mins = *reinterpret_cast<const uint2*>(&image.line[Image::kMins + b][row]);
    const auto half = [](uint32_t v) { return half_float(static_cast<uint16_t>(v)); };
    const float first[2] = {half(mins.x), half(mins.y)}, second[2] = {half(mins.x >> 16), half(mins.y >> 16)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 u = *reinterpret_cast<const uint4*>(&tokens.sum[b][16 * j + 4 * t]);
      const float4 d = *reinterpret_cast<const float4*>(&tokens.d[b][16 * j + 4 * t]);
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
  __device__ __forceinline__ void close(int part, float (&y)[32]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (part < Held) {
#pragma unroll
        for (int e = 0; e < 4; ++e) held[part < Held ? part : 0][4 * i + e] += y[4 * i + e];
      } else {
        float4& to = total[((part - Held) * 8 + i) * kThreads];
        const float4 v = to;
        to = make_float4(v.x + y[4 * i], v.y + y[4 * i + 1], v.z + y[4 * i + 2], v.w + y[4 * i + 3]);
      }
      y[4 * i] = y[4 * i + 1] = y[4 * i + 2] = y[4 * i + 3] = 0.0f;
    }
  }

  // The blocks of stage i, of this group's first Active parts.
  template <int Active>
  __device__ __forceinline__ void blocks_of(const Stage& s, int i, int blocks, int& segment, int& end, float (&c)[Parts][32],
                                             float (&y)[Parts][32]) {
    Fragments a[2];
    fragments(s, 0, a[0]);
#pragma unroll
    for (int part = 0; part < Active; ++part) multiply(s, 0, part, a[0], c[part]);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool more = pass + 1 < kPasses;  // nothing may be in flight where the loop turns
      if (more) fragments(s, pass + 1, a[(pass + 1) % 2]);
      const int block = 2 * Depth * i + pass / F::kSub;
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

  // Stages of this group's first Active parts. Rows and Tokens: copy(tile, stage, i, barrier) starts the copies of a stage;
  // Rows that are decoded: fetch(tile, i) starts to load, put(tile, stage) a stage later has them there.
  template <int Active, class Rows, class Tokens> __device__ __forceinline__ void run(Rows& rows, Tokens& tokens, int blocks) {
    const int stages = (blocks + 2 * Depth - 1) / (2 * Depth);
    constexpr int bulk = Rows::template kBytes<Wide> + Tokens::template kBytes<Wide>;
    const auto copy = [&](int i) {
      uint64_t* barrier = arrived + i % Stages;
#if STRATA_BULK
      if (bulk > 0 && threadIdx.x == 0) arrival_expect(barrier, bulk);
#endif
      rows.copy(*this, stage(i), i, barrier), tokens.copy(*this, stage(i), i, barrier);
    };
#if STRATA_BULK
    if (bulk > 0) {
      if (threadIdx.x < Stages) arrival_init(arrived + threadIdx.x);
      __syncthreads();
    }
#endif
#pragma unroll
    for (int i = 0; i < Stages - 1; ++i) {
      if (i < stages) copy(i);
      copies_group();
    }
    rows.first(*this);
    float c[Parts][32], y[Parts][32];
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        c[part][i] = 0.0f, y[part][i] = 0.0f;
        if (part < Held) held[part < Held ? part : 0][i] = 0.0f;
      }
      if (part >= Held) {
#pragma unroll
        for (int i = 0; i < 8; ++i) total[((part - Held) * 8 + i) * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
    int segment = 0, end = segment_begin(1, blocks);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
#if STRATA_BULK
      if constexpr (Tokens::template kBytes<Wide> == 0) copies_wait_for_groups<Stages - 2>(), publish_shared();
      if constexpr (bulk > 0) arrival_wait(arrived + i % Stages, i / Stages & 1);
#else
      copies_wait_for_groups<Stages - 2>();
      publish_shared();
#endif
      __syncthreads();  // stage i is there, and nobody reads stage i - 1 any more
      if (i + Stages - 1 < stages) copy(i + Stages - 1);
      copies_group();
      if (i + 1 < stages) rows.fetch(*this, i + 1);
      if constexpr (Active > 0) blocks_of<Active>(stage(i), i, blocks, segment, end, c, y);
      if (i + 1 < stages) rows.put(*this, stage(i + 1));
    }
  }

  // put(row, token, four) of this thread's outputs in the tile: row and row + 8 (z, w) at token and token + 1.
  template <class Put> __device__ __forceinline__ void results(int active, Put put) const {
#pragma unroll
    for (int i = 0; i < Parts * 8; ++i) {
      const int part = i / 8;
      if (part >= active) break;
      const int row = row_group * 64 + group_row + g, token = group_token() + 8 * i + 2 * t;
      if (part < Held) {
        const float* h = held[part < Held ? part : 0] + 4 * (i % 8);
        put(row, token, make_float4(h[0], h[1], h[2], h[3]));
      } else {
        put(row, token, total[(i - 8 * Held) * kThreads]);
      }
    }
  }
};

}  // namespace strata
