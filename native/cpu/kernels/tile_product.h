// linear_rows on packed tiles: activations prepared once, then sixteen weight rows at a time.
#pragma once
#include <cstdlib>
#include <type_traits>

#include "cpu/kernels/decode.h"
#include "cpu/kernels/linear_rows.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

constexpr int64_t kActivationBytes = 768 << 10;  // of one pass: most of an L2 cache
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

// Rows go in groups of `widest`, the last few in one of 1, 2 or 4; a group's blocks lie together.
template <int widest> struct RowGroups {
  static int64_t padded(int64_t rows) {
    const int64_t whole = rows / widest * widest, left = rows - whole;
    return whole + (left > 4 ? widest : left == 3 ? 4 : left);
  }
  // Calls run(first row, rows of the group as a constant).
  template <class F> static void each(int64_t padded, F&& run) {
    int64_t row = 0;
    for (; row + widest <= padded; row += widest) run(row, std::integral_constant<int, widest>{});
    if (padded - row == 4) run(row, std::integral_constant<int, 4>{});
    if (padded - row == 2) run(row, std::integral_constant<int, 2>{});
    if (padded - row == 1) run(row, std::integral_constant<int, 1>{});
  }
};

// to[row * blocks + b * n + i]: block b of row `row + i` in a group of n; rows past the last are zeros. Written a few
// blocks at a time: lines of all of a row's blocks would fall into the same cache sets.
template <QuantType T, int widest>
static void prepare(const QuantisedRows& x, const int32_t* index, int64_t first, int64_t rows, ActivationBlock* to) {
  RowGroups<widest>::each(RowGroups<widest>::padded(rows), [&](int64_t row, int n) {
    for (int64_t begin = 0; begin < x.blocks; begin += kChunkBlocks) {
      const int64_t end = begin + kChunkBlocks < x.blocks ? begin + kChunkBlocks : x.blocks;
      for (int i = 0; i < n; ++i) {
        const int64_t r = row + i, from = r < rows ? (index ? index[first + r] : first + r) * x.blocks : -1;
        for (int64_t b = begin; b < end; ++b) {
          ActivationBlock& block = to[row * x.blocks + b * n + i];
          if (from >= 0)
            prepare_block<T>(x, from + b, block);
          else
            block = {};
        }
      }
    }
  });
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

// Sums of sixteen features for n rows, up to four: chains in registers, and codes from the moment they are taken apart.
template <class K, int n> struct FewRows {
  FloatVector chain[kParts][n];
  const ActivationBlock* x;
  float* total;

  STRATA_HD FewRows(const ActivationBlock* x, int64_t, int64_t, float* y, float*) : x(x), total(y) {
    for (int i = 0; i < n * kFeatures; i += kVectorLanes) store_floats(total + i, splat_vector(0.0f));
#pragma GCC unroll 8
    for (int i = 0; i < kParts * n; ++i) chain[i / n][i % n] = splat_vector(0.0f);
  }
  STRATA_HD void block(PackedTile& tile, int b, const BlockCodes& w, int64_t at, bool ends) {
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) chain_steps<K, n>(tile, b, w, p, x + at * n, chain[p]);
    if (!ends) return;
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p)
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) {
        float* y = total + i * kFeatures + p * kVectorLanes;
        store_floats(y, add(load_vector(y), chain[p][i]));
        chain[p][i] = splat_vector(0.0f);
      }
  }
  STRATA_HD void chunk(const PackedTile&, int64_t, int) {}
};

// A chunk of `count` blocks, decoded in the tile, for n rows, whose blocks lie at x: chains and totals [n, 16]. Bit b of
// `ends`: block b is the last of a segment. The same code for all formats of a kind.
template <class K, int n>
[[gnu::noinline]] static void chunk_rows(const PackedTile& tile, int count, uint32_t ends, const ActivationBlock* x,
                                         float* chain, float* total) {
  for (int p = 0; p < kParts; ++p, chain += kVectorLanes, total += kVectorLanes) {
    FloatVector y[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) y[i] = load_vector(chain + i * kFeatures);
    for (int b = 0; b < count; ++b) {
      chain_steps<K, n>(tile, b, reinterpret_cast<const BlockCodes&>(tile.codes[b]), p, x + b * n, y);
      if (ends >> b & 1) {
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
          store_floats(total + i * kFeatures, add(load_vector(total + i * kFeatures), y[i]));
          y[i] = splat_vector(0.0f);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) store_floats(chain + i * kFeatures, y[i]);
  }
}

// Rows whose sums one core keeps in registers together.
template <class K> constexpr int kWidest = STRATA_SIMD == 512 && !K::halves ? 8 : 4;

// Sums for many rows, padded to groups, in memory: [rows, 16].
template <class K> struct ManyRows {
  const ActivationBlock* x;
  int64_t rows, blocks;
  float *total, *chain;
  uint32_t ends = 0;

  STRATA_HD ManyRows(const ActivationBlock* x, int64_t blocks, int64_t rows, float* y, float* scratch)
      : x(x), rows(RowGroups<kWidest<K>>::padded(rows)), blocks(blocks), total(y), chain(scratch) {
    memset(total, 0, static_cast<size_t>(this->rows * kFeatures) * sizeof(float));
    memset(chain, 0, static_cast<size_t>(this->rows * kFeatures) * sizeof(float));
  }
  STRATA_HD void block(PackedTile& tile, int b, const BlockCodes& w, int64_t, bool last) {
    for (int g = 0; g < kGroups; ++g)
      for (int v = 0; v < kVectors; ++v) store_bytes(tile.codes[b][g] + v * kBytes, w[g][v]);
    ends |= static_cast<uint32_t>(last) << b;
  }
  STRATA_HD void chunk(const PackedTile& tile, int64_t first, int count) {
    RowGroups<kWidest<K>>::each(rows, [&](int64_t row, auto size) {
      chunk_rows<K, size>(tile, count, ends, x + row * blocks + first * size, chain + row * kFeatures,
                          total + row * kFeatures);
    });
    ends = 0;
  }
};

constexpr int kAhead = 4096;  // beyond a tile: a tile of short rows is computed before memory answers

// Asks for `bytes` from p + kAhead on; returns what follows p's.
STRATA_HD const uint8_t* bring_near(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i + kAhead, 0, 3);
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
  PackedTile tile;
  WeightRows at;
  for (int f = 0; f < kFeatures; ++f) at.at[f] = weight + (f < features ? f : features - 1) * row_bytes;
  Segments segment(blocks);
  Sums sums(x, blocks, rows, y, scratch);
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int count = static_cast<int>(blocks - first < kChunkBlocks ? blocks - first : kChunkBlocks);
    const int64_t bytes = count / kParts * kBytesOf;
    Decode<T>::load(at, count, tile);
    Decode<T>::scales(at, count, tile);
    for (int f = 0; f < kFeatures; ++f) at.at[f] += bytes;
#pragma GCC unroll 8
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (b >= count) break;
      next = bring_near(next, kBytesOf * kFeatures / kParts);
      BlockCodes w;
      Decode<T>::block(tile, b, w);
      sums.block(tile, b, w, first + b, segment.ends_with(static_cast<int>(first) + b));
    }
    sums.chunk(tile, first, count);
  }
}

// tile_product with sums for that many rows. AVX2 has not the registers for codes and the sums of several rows.
template <QuantType T>
static void tile_rows(const uint8_t* weight, int64_t features, int64_t blocks, const ActivationBlock* x, int64_t rows,
                      float* y, float* scratch) {
  using K = KindOf<T>;
  if (rows == 1) return tile_product<T, FewRows<K, 1>>(weight, features, blocks, x, rows, y, scratch);
  if constexpr (STRATA_SIMD == 512) {
    if (rows == 2) return tile_product<T, FewRows<K, 2>>(weight, features, blocks, x, rows, y, scratch);
    if (rows <= 4) return tile_product<T, FewRows<K, 4>>(weight, features, blocks, x, rows, y, scratch);
  }
  tile_product<T, ManyRows<K>>(weight, features, blocks, x, rows, y, scratch);
}

// y [rows, 16] to the features that there are.
static void store_rows(const float* y, int64_t rows, int64_t features, float* out, int64_t stride) {
  if (features == kFeatures) {  // a call or a string instruction would cost as much as a tenth of the product
    for (int64_t r = 0; r < rows; ++r) store_floats(out + r * stride, load_floats(y + r * kFeatures));
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    memcpy(out + r * stride, y + r * kFeatures, static_cast<size_t>(features) * sizeof(float));
}

template <QuantType T> static bool product(const RowsProduct& p) {
  using K = KindOf<T>;
  const QuantisedRows& x = p.x;
  const int64_t rows = p.rows, features = p.features;
  const int64_t row_blocks = x.blocks * static_cast<int64_t>(sizeof(ActivationBlock));
  const int64_t row_bytes = x.blocks / (Layout<T>::values / kBlock) * Layout<T>::bytes;
  int64_t pass = kActivationBytes / row_blocks;
  pass = pass < kMinRows ? kMinRows : pass;
  const int64_t passes = (rows + pass - 1) / pass;
  pass = passes > 0 ? (rows + passes - 1) / passes : 0;
  const int64_t padded = pass + kWidest<K>;
  const int64_t chain_bytes = padded * kFeatures * static_cast<int64_t>(sizeof(float));
  uint8_t* memory = workspace.reserve(padded * row_blocks + 2 * chain_bytes);
  if (memory == nullptr) return false;
  auto* blocks = reinterpret_cast<ActivationBlock*>(memory);
  auto* y = reinterpret_cast<float*>(memory + padded * row_blocks);
  float* scratch = y + padded * kFeatures;
  for (int64_t first = 0; first < rows; first += pass) {
    const int64_t count = rows - first < pass ? rows - first : pass;
    prepare<T, kWidest<K>>(x, p.index, first, count, blocks);
    for (int64_t f = 0; f < features; f += kFeatures) {
      const int64_t wide = features - f < kFeatures ? features - f : kFeatures;
      const uint8_t* tile = p.weight + f * row_bytes;
      tile_rows<T>(tile, wide, x.blocks, blocks, count, y, scratch);
      store_rows(y, count, wide, p.out + first * p.stride + f, p.stride);
    }
  }
  return true;
}

}  // namespace strata::STRATA_LEVEL
#endif
