// Products of prompt chunks with quantised weights on f16 tensor cores, in the contract's order.
//
// A 32-block's exact integer sum is what f16 products with float sums give: codes, or codes times their integer sub-scale, are f16
// integers (Q6_K's take 12 bits and are the sum of two), and sums stay below 2^24. It arrives as a float, so that a chain step is two
// float operations.
//
// A thread block has two warpgroups that multiply, 64 weight rows each with all tokens of the tile, and one or two that bring stages of two
// or four blocks: no barrier joins them all, so that one warpgroup's chain steps run beside the other's products.
#pragma once

#include "ring.cuh"
#include "wide_steps.cuh"

namespace strata {

// F: WideFormat. A tile has up to 128 tokens, by 32: quarters. Count: stages in shared memory, each of so many Images of two blocks: what a
// consumer does when a stage begins hides behind nothing of its own. Decodes: producers decode weights, for which there are twice as many.
template <class F, int Count, int Images, bool Decodes> struct Wide {
  static constexpr int kConsumers = 256, kProducers = Decodes ? 256 : 128, kThreads = kConsumers + kProducers;
  static constexpr int kRows = 128, kTokens = 128, kQuarter = 32, kBlocks = 2 * Images;
  // Of a thread: together what launch bounds give all warpgroups, 168 each of three or 128 each of four.
  static constexpr int kProducerRegisters = Decodes ? 56 : 40, kConsumerRegisters = Decodes ? 256 - kProducerRegisters : 252 - kProducerRegisters / 2;
  // Whether registers are left for the next quarter's scales, of tiles with so many quarters.
  template <int Active> static constexpr bool kEarly = F::kMin != 1 && (!Decodes || Active <= 3);
  static_assert(Images == 1 || !Decodes, "weights are decoded an image a stage");
  using Image = RowImage<F>;

  struct Stage {
    TokenImage tokens[Images][2];
    Image rows[Images][2];
  };
  static_assert(sizeof(TokenImage) % 1024 == 0, "images of tokens lie on borders of 1,024 bytes, which group_product asks for");
  static constexpr int kStageBytes = (static_cast<int>(sizeof(Stage)) + 1023) / 1024 * 1024;
  using Stages = Ring<Count, kStageBytes>;
  static constexpr int kSharedBytes = Stages::kSharedBytes;

  Stages ring;

  // All threads; a barrier of the thread block must follow.
  __device__ __forceinline__ explicit Wide(uint8_t* shared) : ring(shared, kProducers, kConsumers) {}
  __device__ __forceinline__ Stage& stage(const typename Stages::At& at) const { return *reinterpret_cast<Stage*>(ring.stage(at)); }
  static __device__ __forceinline__ bool produces() { return threadIdx.x >= kConsumers; }
  static __device__ __forceinline__ int producer() { return static_cast<int>(threadIdx.x) - kConsumers; }

  // ---- producers ------------------------------------------------------------------------------------------------------

  // Stages of `units` tiles of rows that have the same tokens: rows.copy(to, unit, i) and tokens.copy(to, i) start copies; rows that are
  // decoded are loaded by rows.fetch(unit, i), and there a stage later with rows.put(to).
  template <class Rows, class Tokens> __device__ __forceinline__ void fill(Rows& rows, const Tokens& tokens, int units, int blocks) const {
    const int stages = (blocks + kBlocks - 1) / kBlocks;
    typename Stages::At at, before;
    bool pending = false;
    rows.fetch(0, 0);
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit)
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        ring.wait_empty(at);
        Stage& to = stage(at);
#pragma unroll
        for (int image = 0; image < Images; ++image) {
          tokens.copy(to.tokens[image], Images * i + image);
          rows.copy(to.rows[image], unit, Images * i + image);
        }
        copies_group();
        rows.put(to.rows[0]);
        if (i + 1 < stages) {
          rows.fetch(unit, i + 1);
        } else if (unit + 1 < units) {
          rows.fetch(unit + 1, 0);
        }
        if (pending) copies_wait_for_groups<1>(), ring.fill(before);
        pending = true, before = at;
        at.next();
      }
    copies_wait_for_groups<0>(), ring.fill(before);
  }

  // ---- consumers ------------------------------------------------------------------------------------------------------

  // Where a thread of a consumer stands; in registers, for what it follows from would be asked for again in every stage.
  struct Own {
    uint32_t codes[2][2];  // of rows g and g + 8, blocks 0 and 1 of an image: bytes from its begin
    uint32_t line;         // of scales of rows g and g + 8
    uint32_t tokens;       // of scales of a quarter's tokens
    uint32_t bias;         // f16 1024 four times, but for the lowest byte: from a register, so that permutations have theirs in the instruction
    bool low;              // whether this thread's values are of the lower half of a block
    __device__ __forceinline__ Own() : bias(0x64646464u) {
      uint32_t thread = threadIdx.x;
      asm volatile("" : "+r"(thread));
      const int g = thread % 32 / 4, t = thread % 4, row = thread / 32 % 4 * 16;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int b = 0; b < 2; ++b) codes[h][b] = code_offset(row + g + 8 * h, b) + 8 * t;
      line = 4 * (row + 2 * g), tokens = 16 * t, low = t < 2;
    }
    // Of a line of an image of rows; of a line of one of tokens, from the 16 on at which `line` points.
    template <class V> __device__ __forceinline__ V of(const uint32_t* at) const {
      return *reinterpret_cast<const V*>(reinterpret_cast<const uint8_t*>(at) + line);
    }
    template <class V> __device__ __forceinline__ V token(const void* at) const {
      return *reinterpret_cast<const V*>(static_cast<const uint8_t*>(at) + tokens);
    }
  };

  // What a thread has of its 64 rows: a quarter's c[4 j + e] is row 16 warp + g + 8 (e / 2) of the warpgroup at token 8 j + 2 t + e % 2.
  static __device__ __forceinline__ int row_group() { return warp_id() / 4; }
  static __device__ __forceinline__ int group_row() { return warp_id() % 4 * 16; }

  using Fragments = uint32_t[2][F::kTerms][4];  // two slices of 16 values

  // This thread's fragments of block b of an image, or of half of its codes.
  static __device__ __forceinline__ void fragments(const Image& image, const Own& own, int b, int half, Fragments& a) {
    uint2 row[2];
    uint32_t scale[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h] = *reinterpret_cast<const uint2*>(image.codes + (b ? own.codes[h][1] : own.codes[h][0]));
    if constexpr (F::kHalves) {
      const uint2 both = own.template of<uint2>(image.line[Image::kS + b]);
      scale[0] = __byte_perm(both.x, 0, own.low ? 0x1010 : 0x3232), scale[1] = __byte_perm(both.y, 0, own.low ? 0x1010 : 0x3232);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int slice = i / 4, h = i % 2, upper = i / 2 % 2;
      const uint32_t biased = __byte_perm(own.bias, slice ? row[h].y : row[h].x, upper ? 0x0706 : 0x0504);  // 1024 + 128 + code
      uint32_t value = add_halves(biased, 0xe480e480u);
      if constexpr (F::kSub == 2)
        if (own.low != (half == 0)) value = 0;
      if constexpr (F::kHalves) {
        const uint32_t product = multiply_halves(value, scale[h]);
        if constexpr (F::kTerms == 2) a[slice][1][2 * upper + h] = fma_halves(value, scale[h], product ^ 0x80008000u);
        value = product;
      }
      a[slice][0][2 * upper + h] = value;
    }
  }

  // Starts the products of a quarter of the tokens, whose images begin at `tokens`, with fragments of block b.
  static __device__ __forceinline__ void multiply(const SharedLines& tokens, int b, int quarter, const Fragments& a, float (&c)[16]) {
    products_fence();
    const SharedLines x = tokens.at(quarter / 2 * kTokenBytes + quarter % 2 * kQuarter * 128);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < F::kTerms; ++e) group_product(c, a[i][e], x, 2 * b + i, i + e > 0);
    products_commit();
  }

  // What the tokens of a quarter bring to their chain steps with a block.
  struct TokenScales {
    float4 d[2], sum[F::kMin == 1 ? 2 : 1];
    TokenScales() = default;
    __device__ __forceinline__ TokenScales(const TokenImage& tokens, const Own& own, int b, int quarter) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        d[j] = own.template token<float4>(tokens.d[b] + quarter % 2 * kQuarter + 16 * j);
        if constexpr (F::kMin == 1) sum[j] = own.template token<float4>(tokens.sum[b] + quarter % 2 * kQuarter + 16 * j);
      }
    }
  };

  // The chain steps of a quarter with block b; `ends`: with all of its codes.
  static __device__ __forceinline__ void steps(const Image& image, const TokenImage& tokens, const Own& own, const TokenScales& scales, int b, bool ends,
                                               int quarter, const float2& w, const float2& m, const float (&c)[16], float (&y)[16]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 d = scales.d[j];
      const float scale[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& out = y[8 * j + e];
        out = fma32(c[8 * j + e], (e & 2 ? w.y : w.x) * scale[e / 4 * 2 + e % 2], out);
      }
    }
    if constexpr (F::kMin == 1)
      if (ends) minimum(m, scales, y);
    if constexpr (F::kMin == 2) minimums(image, tokens, own, scales, b, quarter, y);
  }

  static __device__ __forceinline__ void minimum(const float2& m, const TokenScales& scales, float (&y)[16]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 u = scales.sum[j];
      const float sum[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) y[8 * j + e] = fma32(e & 2 ? m.y : m.x, sum[e / 4 * 2 + e % 2], y[8 * j + e]);
    }
  }

  static __device__ __forceinline__ void minimums(const Image& image, const TokenImage& tokens, const Own& own, const TokenScales& scales, int b,
                                                  int quarter, float (&y)[16]) {
    const float2 m = own.template of<float2>(image.line[Image::kM + b]);
    const uint2 mins = own.template of<uint2>(image.line[Image::kMins + b]);
    const auto half = [](uint32_t v) { return half_float(static_cast<uint16_t>(v)); };
    const float first[2] = {half(mins.x), half(mins.y)}, second[2] = {half(mins.x >> 16), half(mins.y >> 16)};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 u = own.template token<uint4>(tokens.sum[b] + quarter % 2 * kQuarter + 16 * j);
      const float4 d = scales.d[j];
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

  // A row's segments: where segment s ends.
  struct Segments {
    int blocks, shift, done = 0, end;
    __device__ __forceinline__ explicit Segments(int blocks_) : blocks(blocks_), shift(__ffs(segments(blocks_)) - 1), end(blocks_ >> shift) {}
    __device__ __forceinline__ void next() { ++done, end = (done + 1) * blocks >> shift; }
  };

  // Two rows' scales of a pass; of its block's minimums.
  static __device__ __forceinline__ float2 weight_scales(const Image& image, const Own& own, int line) {
    return own.template of<float2>(image.line[line]);
  }

  // `Blocks` blocks of a stage from `begin` on, of which `first` is the row's number, of the tile's first Active quarters. While a quarter's
  // products are taken, the one before is added, and what later steps need is read. Guarded: blocks beyond the row's last are left out.
  template <int Active, int Blocks, bool Guarded>
  static __device__ __forceinline__ void blocks_of(const Stage& s, const Own& own, int begin, int first, Segments& segment, float (&y)[Active][16],
                                                   float (&total)[Active][16]) {
    constexpr int kPasses = Blocks * F::kSub;
    const SharedLines columns = SharedLines::from(s.tokens);
    const int group = row_group();
    Fragments a[2];
    float c[2][16];
    float2 w[2], m[2] = {};
    TokenScales scales[2];
    const auto block = [&](int pass) { return begin + pass / F::kSub; };
    const auto image = [&](int pass) -> const Image& { return s.rows[block(pass) / 2][group]; };
    const auto tokens = [&](int pass, int quarter) -> const TokenImage& { return s.tokens[block(pass) / 2][quarter / 2]; };
    const auto read_rows = [&](int pass) {
      const int b = block(pass) % 2;
      w[pass % 2] = weight_scales(image(pass), own, F::kSub * b + pass % F::kSub);
      if constexpr (F::kMin == 1) m[pass % 2] = weight_scales(image(pass), own, Image::kM + b);
    };
    const auto read_codes = [&](int pass) { fragments(image(pass), own, block(pass) % 2, pass % F::kSub, a[pass % 2]); };
    const auto read_tokens = [&](int pass, int quarter) { return TokenScales(tokens(pass, quarter), own, block(pass) % 2, quarter); };
    const auto start = [&](int pass, int quarter, float(&sums)[16]) {
      multiply(columns.at(block(pass) / 2 * 2 * kTokenBytes), block(pass) % 2, quarter, a[pass % 2], sums);
    };
    if constexpr (kEarly<Active>) scales[0] = read_tokens(0, 0);
    read_rows(0);
    read_codes(0);
    start(0, 0, c[0]);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool more = pass + 1 < kPasses;  // nothing may be in flight where the loop turns
      const bool there = !Guarded || pass < F::kSub || first + pass / F::kSub < segment.blocks;
#pragma unroll
      for (int quarter = 0; quarter < Active; ++quarter) {
        const int now = (pass * Active + quarter) % 2, next = quarter + 1 < Active ? quarter + 1 : 0, its = quarter + 1 < Active ? pass : pass + 1;
        if constexpr (!kEarly<Active>) scales[now] = read_tokens(pass, quarter);
        if (quarter == 0 && Active == 1 && more) read_codes(pass + 1);
        if (quarter + 1 < Active || more) start(its, next, c[now ^ 1]);
        if (quarter == 0 && Active > 1 && more) read_codes(pass + 1);
        if (quarter == 0 && more) read_rows(pass + 1);
        if (quarter + 1 < Active || more) {
          if constexpr (kEarly<Active>) scales[now ^ 1] = read_tokens(its, next);
          products_wait<1>(c[now]);
        } else {
          products_wait<0>(c[now]);
        }
        if (there)
          steps(image(pass), tokens(pass, quarter), own, scales[now], block(pass) % 2, pass % F::kSub == F::kSub - 1, quarter, w[pass % 2],
                m[pass % 2], c[now], y[quarter]);
      }
      if (pass % F::kSub == F::kSub - 1 && first + pass / F::kSub + 1 == segment.end) {
#pragma unroll
        for (int quarter = 0; quarter < Active; ++quarter)
#pragma unroll
          for (int e = 0; e < 16; ++e) total[quarter][e] += y[quarter][e], y[quarter][e] = 0.0f;
        segment.next();
      }
    }
  }

  // put(unit, total) of each tile of rows; total: float[Active][16].
  template <int Active, class Put> __device__ __forceinline__ void consume(int units, int blocks, Put put) const {
    typename Stages::At at;
    const Own own;
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      float y[Active][16], total[Active][16];
#pragma unroll
      for (int quarter = 0; quarter < Active; ++quarter)
#pragma unroll
        for (int e = 0; e < 16; ++e) y[quarter][e] = total[quarter][e] = 0.0f;
      Segments segment(blocks);
      int first = 0;
      // Where weights are decoded all stages are guarded: a branch before every quarter's steps keeps ptxas, which has few registers there,
      // from moving steps before the start of the next quarter's products.
#pragma unroll 1
      for (; first + (Decodes ? 1 : kBlocks) <= blocks; first += kBlocks) {
        ring.wait_full(at);
        blocks_of<Active, kBlocks, Decodes>(stage(at), own, 0, first, segment, y, total);
        ring.release(at);
        at.next();
      }
      if (!Decodes && first < blocks) {
        ring.wait_full(at);
#pragma unroll 1
        for (int begin = 0; begin < blocks - first; ++begin) blocks_of<Active, 1, false>(stage(at), own, begin, first + begin, segment, y, total);
        ring.release(at);
        at.next();
      }
      put(unit, total);
    }
  }

  // put_result(row, token, four) of this thread's outputs of a tile: row and row + 8 (z, w) of 128 at token and token + 1.
  template <int Active, class Put> static __device__ __forceinline__ void results(const float (&total)[Active][16], Put put_result) {
#pragma unroll
    for (int i = 0; i < 4 * Active; ++i) {
      const float* v = total[i / 4] + i % 4 * 4;
      put_result(row_group() * 64 + group_row() + lane_id() / 4, i * 8 + 2 * (lane_id() % 4), make_float4(v[0], v[1], v[2], v[3]));
    }
  }
};

}  // namespace strata
