// linear_rows on packed tiles (AVX2, AVX-512) or, on other processors, by the portable text.
#include "cpu/kernels/linear_rows.h"

#include <cstdlib>

#include "cpu/kernels/decode_grid.h"
#include "cpu/kernels/decode_k.h"
#include "cpu/kernels/decode_simple.h"

#if !STRATA_SIMD
#include "cpu/kernels/linear_tile.h"
#endif

namespace strata::STRATA_LEVEL {

#if STRATA_SIMD

static constexpr int64_t kActivationBytes = 512 << 10;  // of one pass: half an L2 cache
static constexpr int64_t kMinRows = 16;                 // of a pass, however long they are

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

// to[b * rows + r]: block b of row r.
template <QuantType T>
static void prepare(const QuantisedRows& x, const int32_t* index, int64_t first, int64_t rows, ActivationBlock* to) {
  using D = Decode<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = index ? index[first + r] : first + r;
    const int8_t* codes = x.codes + row * x.blocks * kBlock;
    const int16_t* sums = x.sums + row * x.blocks * 2;
    for (int64_t b = 0; b < x.blocks; ++b) {
      ActivationBlock& a = to[b * rows + r];
      const int32_t low = sums[2 * b], high = sums[2 * b + 1];
      order_codes(codes + b * kBlock, D::strided, a.codes);
      a.d = x.scales[row * x.blocks + b];
      a.sum_d = static_cast<float>(low + high) * a.d;
      a.offset[0] = D::bias * (Layout<T>::halves || Layout<T>::scale16 ? low : low + high);
      a.offset[1] = D::bias * high;
      a.sum[0] = low, a.sum[1] = high;
    }
  }
}

// Sixteen features times the prepared rows; y, total [rows, 16]. `next`: bytes to bring near meanwhile, as many as the
// tile has.
template <QuantType T>
static void tile_product(const uint8_t* weight, int64_t features, int64_t blocks, const ActivationBlock* x, int64_t rows,
                         const uint8_t* next, float* y, float* total) {
  using Kind = ProductKind<T>;
  constexpr int kParts = Layout<T>::values / kBlock, kBytesOf = Layout<T>::bytes;
  const int64_t row_bytes = blocks / kParts * kBytesOf;
  const int segment_count = segments(static_cast<int>(blocks));
  PackedTile tile;
  WeightRows at;
  for (int f = 0; f < kFeatures; ++f) at.at[f] = weight + (f < features ? f : features - 1) * row_bytes;
  for (int64_t i = 0; i < rows * kFeatures; ++i) y[i] = total[i] = 0.0f;
  int segment = 0;
  int64_t segment_end = segment_begin(1, static_cast<int>(blocks));
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int count = static_cast<int>(blocks - first < kChunkBlocks ? blocks - first : kChunkBlocks);
    const int64_t bytes = count / kParts * kBytesOf;
    for (int64_t i = 0; i < bytes * kFeatures; i += 64) __builtin_prefetch(next + i, 0, 3);
    next += bytes * kFeatures;
    Decode<T>::codes(at, count, tile);
    Decode<T>::scales(at, count, tile);
    for (int f = 0; f < kFeatures; ++f) at.at[f] += bytes;
    for (int b = 0, end; b < count; b = end) {  // to the end of a segment or of the chunk
      end = segment_end - first < count ? static_cast<int>(segment_end - first) : count;
      if (rows == 1)
        row_product<Kind, Decode<T>::is_signed>(tile, b, end, x + first, y);
      else
        for (int i = b; i < end; ++i)
          block_product<Kind, Decode<T>::is_signed>(tile, i, x + (first + i) * rows, rows, y);
      if (first + end < segment_end) continue;
      for (int64_t r = 0; r < rows * kFeatures; r += kFeatures) {
        store_floats(total + r, add(load_floats(total + r), load_floats(y + r)));
        store_floats(y + r, splat(0.0f));
      }
      if (++segment < segment_count) segment_end = segment_begin(segment + 1, static_cast<int>(blocks));
    }
  }
}

template <QuantType T>
static bool product(const QuantisedRows& x, const int32_t* index, int64_t rows, const uint8_t* weight, int64_t features,
                    float* out, int64_t stride) {
  const int64_t row_blocks = x.blocks * static_cast<int64_t>(sizeof(ActivationBlock));
  const int64_t row_bytes = x.blocks / (Layout<T>::values / kBlock) * Layout<T>::bytes;
  int64_t pass = kActivationBytes / row_blocks;
  pass = pass < kMinRows ? kMinRows : pass;
  if (pass > rows) pass = rows;
  const int64_t chain_bytes = pass * kFeatures * static_cast<int64_t>(sizeof(float));
  uint8_t* memory = workspace.reserve(pass * row_blocks + 2 * chain_bytes);
  if (memory == nullptr) return false;
  auto* blocks = reinterpret_cast<ActivationBlock*>(memory);
  auto* y = reinterpret_cast<float*>(memory + pass * row_blocks);
  float* total = y + pass * kFeatures;
  for (int64_t first = 0; first < rows; first += pass) {
    const int64_t count = rows - first < pass ? rows - first : pass;
    prepare<T>(x, index, first, count, blocks);
    for (int64_t f = 0; f < features; f += kFeatures) {
      const int64_t wide = features - f < kFeatures ? features - f : kFeatures;
      const uint8_t* tile = weight + f * row_bytes;
      tile_product<T>(tile, wide, x.blocks, blocks, count, tile + kFeatures * row_bytes, y, total);
      for (int64_t r = 0; r < count; ++r)
        memcpy(out + (first + r) * stride + f, total + r * kFeatures, static_cast<size_t>(wide) * sizeof(float));
    }
  }
  return true;
}

#endif

Fault linear_rows(QuantType type, const QuantisedRows& x, const int32_t* index, int64_t rows, const uint8_t* weight,
                  int64_t features, float* out, int64_t stride) {
  Fault fault = kFaultNone;
  const bool known = with_quantised_format(type, [&]<QuantType T>() {
#if STRATA_SIMD
    if (!product<T>(x, index, rows, weight, features, out, stride)) fault = kFaultMemory;
#else
    portable_rows<T>({x.blocks, stride, x.codes, x.scales, x.sums, index, weight, out}, rows, features);
#endif
  });
  return known ? fault : kFaultRange;
}

}  // namespace strata::STRATA_LEVEL
