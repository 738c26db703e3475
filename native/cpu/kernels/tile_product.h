// linear_rows on packed tiles: activations prepared once, then sixteen weight rows at a time.
#pragma once
#include <cstdlib>

#include "cpu/kernels/decode.h"
#include "cpu/kernels/linear_rows.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

constexpr int64_t kActivationBytes = 768 << 10;  // of one pass: most of an L2 cache
constexpr int64_t kSpreadBytes = 40 << 10;  // of a tile: two larger ones do not share a first-level cache (measured)
constexpr int64_t kMinRows = 16;                 // of a pass, however long they are

// A thread's prepared activations and chains; grows to the largest product met.
struct Workspace {
  uint8_t* data = nullptr;
  int64_t size = 0;

  ~Workspace() { free(data); }

  uint8_t* reserve(int64_t bytes) {
    if (bytes <= size) return data;
    free(data);
    data = static_cast<uint8_t*>(aligned_alloc(64, static_cast<size_t>(bytes)));
    size = data ? bytes : 0;
    return data;
  }
};

static thread_local Workspace workspace;

// Values in the order that Decode<T> gives them.
STRATA_HD void order_codes(const int8_t* from, bool strided, int8_t* to) {
  __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if (strided) {
    const __m256i within = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                            13, 2, 6, 10, 14, 3, 7, 11, 15);
    x = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x, within), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), x);
}

// Block `at` of the planes.
template <QuantType T> STRATA_HD void prepare_block(const QuantisedRows& x, int64_t at, ActivationBlock& to) {
  using D = Decode<T>;
  int32_t words;
  memcpy(&words, x.sums + 2 * at, 4);
  const __m128i halves = _mm_cvtepi16_epi32(_mm_cvtsi32_si128(words)), whole = _mm_hadd_epi32(halves, halves);
  const __m128i added = Layout<T>::halves || Layout<T>::scale16 ? halves : whole;
  order_codes(x.codes + at * kBlock, D::strided, to.codes);
  to.d = x.scales[at];
  to.sum_d = _mm_cvtss_f32(_mm_cvtepi32_ps(whole)) * to.d;
  _mm_store_si128(reinterpret_cast<__m128i*>(to.start[0]),
                  _mm_cvtepu32_epi64(_mm_mullo_epi32(added, _mm_set1_epi32(-D::bias))));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to.sum), halves);
}

// to[b * rows + r]: block b of row r. Written a few blocks at a time: lines of all of a row's blocks would fall into the
// same cache sets.
template <QuantType T>
static void prepare(const QuantisedRows& x, const int32_t* index, int64_t first, int64_t rows, ActivationBlock* to) {
  for (int64_t begin = 0; begin < x.blocks; begin += kChunkBlocks) {
    const int64_t end = begin + kChunkBlocks < x.blocks ? begin + kChunkBlocks : x.blocks;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = (index ? index[first + r] : first + r) * x.blocks;
      for (int64_t b = begin; b < end; ++b) prepare_block<T>(x, row + b, to[b * rows + r]);
    }
  }
}

// Where the next segment of a row ends.
struct Segments {
  int blocks, count, segment, end;

  STRATA_HD explicit Segments(int64_t n)
      : blocks(static_cast<int>(n)), count(segments(blocks)), segment(0), end(segment_begin(1, blocks)) {}

  // True when block b is the last of its segment; the next one then counts.
  STRATA_HD bool ends_with(int b) {
    if (b + 1 != end) return false;
    if (++segment < count) end = segment_begin(segment + 1, blocks);
    return true;
  }
};

// Sums of sixteen features: for one row in registers.
struct OneRow {
  Floats chain, total;
  float* out;

  STRATA_HD OneRow(int64_t, float* y, float*) : chain(splat(0.0f)), total(chain), out(y) {}

  template <QuantType T>
  STRATA_HD void step(const PackedTile& tile, int b, const BlockCodes& w, const ActivationBlock* x) {
    chain = chain_step<ProductKind<T>, Decode<T>::is_signed>(tile, b, w, *x, chain);
  }
  STRATA_HD void end_segment() { total = add(total, chain), chain = splat(0.0f); }
  STRATA_HD void finish() { store_floats(out, total); }
};

// For many in memory, [rows, 16].
struct ManyRows {
  int64_t rows;
  float *total, *chain;

  STRATA_HD ManyRows(int64_t rows, float* y, float* scratch) : rows(rows), total(y), chain(scratch) {
    for (int64_t r = 0; r < rows; ++r) store_floats(total + r * kFeatures, splat(0.0f));
    for (int64_t r = 0; r < rows; ++r) store_floats(chain + r * kFeatures, splat(0.0f));
  }
  template <QuantType T>
  STRATA_HD void step(const PackedTile& tile, int b, const BlockCodes& w, const ActivationBlock* x) {
    float* y = chain;
    for (int64_t r = 0; r < rows; ++r, y += kFeatures)
      store_floats(y, chain_step<ProductKind<T>, Decode<T>::is_signed>(tile, b, w, x[r], load_floats(y)));
  }
  STRATA_HD void end_segment() {
    for (int64_t r = 0; r < rows * kFeatures; r += kFeatures) {
      store_floats(total + r, add(load_floats(total + r), load_floats(chain + r)));
      store_floats(chain + r, splat(0.0f));
    }
  }
  STRATA_HD void finish() {}
};

// Asks for `bytes` from p on; returns what follows them.
STRATA_HD const uint8_t* bring_near(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
  return p + bytes;
}

// Sixteen features times the prepared rows to y [rows, 16]. Meanwhile the bytes that follow, the next tile's, are brought
// near: rows are too short for the processor to see where they go on.
template <QuantType T, class Sums>
static void tile_product(const uint8_t* weight, int64_t features, int64_t blocks, const ActivationBlock* x,
                         int64_t rows, float* y, float* scratch) {
  constexpr int kParts = Layout<T>::values / kBlock, kBytesOf = Layout<T>::bytes;
  const int64_t row_bytes = blocks / kParts * kBytesOf;
  const uint8_t* next = weight + kFeatures * row_bytes;
  const bool burst = kFeatures * row_bytes > kSpreadBytes;
  PackedTile tile;
  WeightRows at;
  for (int f = 0; f < kFeatures; ++f) at.at[f] = weight + (f < features ? f : features - 1) * row_bytes;
  Segments segment(blocks);
  Sums sums(rows, y, scratch);
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int count = static_cast<int>(blocks - first < kChunkBlocks ? blocks - first : kChunkBlocks);
    const int64_t bytes = count / kParts * kBytesOf;
    if (burst) next = bring_near(next, bytes * kFeatures);
    Decode<T>::load(at, count, tile);
    Decode<T>::scales(at, count, tile);
    for (int f = 0; f < kFeatures; ++f) at.at[f] += bytes;
#pragma GCC unroll 8
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (b >= count) break;
      if (!burst) next = bring_near(next, kBytesOf * kFeatures / kParts);
      BlockCodes w;
      Decode<T>::block(tile, b, w);
      sums.template step<T>(tile, b, w, x + (first + b) * rows);
      if (segment.ends_with(static_cast<int>(first) + b)) sums.end_segment();
    }
  }
  sums.finish();
}

template <QuantType T> static bool product(const RowsProduct& p) {
  const QuantisedRows& x = p.x;
  const int64_t rows = p.rows, features = p.features;
  const int64_t row_blocks = x.blocks * static_cast<int64_t>(sizeof(ActivationBlock));
  const int64_t row_bytes = x.blocks / (Layout<T>::values / kBlock) * Layout<T>::bytes;
  int64_t pass = kActivationBytes / row_blocks;
  pass = pass < kMinRows ? kMinRows : pass;
  const int64_t passes = (rows + pass - 1) / pass;
  pass = passes > 0 ? (rows + passes - 1) / passes : 0;
  const int64_t chain_bytes = pass * kFeatures * static_cast<int64_t>(sizeof(float));
  uint8_t* memory = workspace.reserve(pass * row_blocks + 2 * chain_bytes);
  if (memory == nullptr) return false;
  auto* blocks = reinterpret_cast<ActivationBlock*>(memory);
  auto* y = reinterpret_cast<float*>(memory + pass * row_blocks);
  float* scratch = y + pass * kFeatures;
  for (int64_t first = 0; first < rows; first += pass) {
    const int64_t count = rows - first < pass ? rows - first : pass;
    prepare<T>(x, p.index, first, count, blocks);
    for (int64_t f = 0; f < features; f += kFeatures) {
      const int64_t wide = features - f < kFeatures ? features - f : kFeatures;
      const uint8_t* tile = p.weight + f * row_bytes;
      if (count == 1)
        tile_product<T, OneRow>(tile, wide, x.blocks, blocks, count, y, scratch);
      else
        tile_product<T, ManyRows>(tile, wide, x.blocks, blocks, count, y, scratch);
      for (int64_t r = 0; r < count; ++r)
        memcpy(p.out + (first + r) * p.stride + f, y + r * kFeatures, static_cast<size_t>(wide) * sizeof(float));
    }
  }
  return true;
}

}  // namespace strata::STRATA_LEVEL
#endif
