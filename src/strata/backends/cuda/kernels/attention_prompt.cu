// attention_prompt: dense attention of a prompt's blocks of 64 rows on tensor cores, over cells 0 .. position (the last `window` of them,
// when not 0). Macros: STRATA_KV (pool type), STRATA_DIM (values a head, a multiple of 64 up to 256), STRATA_HEADS (query heads of a KV
// head that a thread block takes), STRATA_STAGED (whether queries lie in shared memory, or are read again for every tile). Grid (heads /
// STRATA_HEADS, blocks of rows), 128 STRATA_HEADS threads: a warp has 16 rows of a head. A tile of cells is a page; the tiles of a row, and their order, depend on its position alone.
#include "cell_tiles.cuh"
#include "op.cuh"

using namespace strata;

namespace {

constexpr int D = STRATA_DIM, H = STRATA_HEADS, kThreads = 128 * H;
constexpr bool kStaged = STRATA_STAGED;
constexpr int kStride = D + 8, kTiles = D / 8, kScores = kTileCells / 8;
using Tile = CellTile<STRATA_KV, D, kThreads>;

struct Room {
  alignas(16) uint16_t query[2][kStaged ? H * 64 * kStride : 8], keys[kTileCells * kStride], values[kTileCells * kStride];
  float key_scale[Tile::kGroups * kTileCells], value_scale[Tile::kGroups * kTileCells];
};

__device__ __forceinline__ void stage_queries(Room& s, const float* q, size_t row_stride) {
  const Matrix to{s.query[0], kStride, H * 64 * kStride};
  for (int i = threadIdx.x; i < H * 64 * D / 4; i += kThreads) {
    const int c = i % (D / 4) * 4, h = i / (D / 4) % H, r = i / (D / 4) / H;
    const float4 x = *reinterpret_cast<const float4*>(q + r * row_stride + h * D + c);
    to.put(h * 64 + r, c, f16_parts(x.x, x.y));
    to.put(h * 64 + r, c + 2, f16_parts(x.z, x.w));
  }
}

// Scores of a warp's 16 rows; `seen(row, cell)` of the tile.
template <class Seen>
__device__ __forceinline__ void scores_of(const Room& s, float (&acc)[kScores][4], const float* q, size_t stride, float scale, bool edge,
                                          Seen seen) {
  query_scores<STRATA_KV, D>(acc, s.keys, s.key_scale, 0, [&](int k, uint32_t(&hi)[4], uint32_t(&lo)[4]) {
    if constexpr (kStaged) {
      load_left<false>(hi, s.query[0], kStride, 16 * warp_id(), k);
      load_left<false>(lo, s.query[1], kStride, 16 * warp_id(), k);
    } else {
      load_left_parts(hi, lo, q, stride, k);
    }
  });
#pragma unroll
  for (int n = 0; n < kScores; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = lane_id() / 4 + e / 2 * 8, c = 8 * n + lane_id() % 4 * 2 + e % 2;
      acc[n][e] = !edge || seen(r, c) ? acc[n][e] * scale : bits_float(0xff800000u);
    }
}

__device__ __forceinline__ void add_values(const Room& s, float (&acc)[kTiles][4], const float (&weights)[kScores][4]) {
  constexpr int tiles = kTiles / Tile::kGroups;  // of values with one scale a cell
#pragma unroll
  for (int k = 0; k < kTileCells / 16; ++k)
#pragma unroll
    for (int g = 0; g < Tile::kGroups; ++g) {
      uint32_t hi[4], lo[4];
      weight_parts<STRATA_KV>(hi, lo, weights[2 * k], weights[2 * k + 1], s.value_scale + g * kTileCells, 16 * k + lane_id() % 4 * 2);
#pragma unroll
      for (int n = g * tiles; n < (g + 1) * tiles; n += 2) {
        uint32_t value[4];
        load_right<true>(value, s.values, kStride, 8 * n, 16 * k);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          mma_f16(acc[n + e], lo, value[2 * e], value[2 * e + 1]);
          mma_f16(acc[n + e], hi, value[2 * e], value[2 * e + 1]);
        }
      }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, D > 64 ? 1 : 2) attention_prompt(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const void* k_pool,
    const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, int heads, int kv_heads,
    int pages_per_seq, int window, int num_pages, float scale, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  Room& s = *reinterpret_cast<Room*>(shared);
  dependency_wait();
  dependency_launch();
  const int row0 = 64 * static_cast<int>(gridDim.y - 1 - blockIdx.y);  // the most cells first
  if (row0 + 64 > *live) return;
  const int head = H * blockIdx.x, kv_head = head / (heads / kv_heads), position = positions[row0], sequence = sequences[row0];
  if (position < 0 || position % 64 != 0) return report(faults, kFaultRange);
  const int last = position / kTileCells, first = window > 0 ? max(position - window + 1, 0) / kTileCells : 0;
  bool good = true;
  const auto pool_row = [&](int tile) {
    const int page = page_id(page_table, pages_per_seq, num_pages, sequence, tile);
    good &= page >= 0;
    return (max(page, 0) * kv_heads + kv_head) * kPageCells;
  };
  const size_t row_stride = static_cast<size_t>(heads) * D;
  if constexpr (kStaged) stage_queries(s, q + row0 * row_stride + head * D, row_stride);
  q += (row0 + warp_id() % 4 * 16) * row_stride + (head + warp_id() / 4) * D;  // of the warp
  Tile keys, values;
  int cells = pool_row(first);
  keys.fetch(s.keys, k_pool, k_scales, [&](int c) { return cells + c; });
  RunningSoftmax soft;
  float acc[kTiles][4] = {};
  const int own = position + warp_id() % 4 * 16;  // position of the warp's first row
  for (int t = first; t <= last; ++t) {
    keys.template land<0>(s.keys, s.key_scale);
    __syncthreads();  // keys are there, values are free
    values.fetch(s.values, v_pool, v_scales, [&](int c) { return cells + c; });
    const int cell = t * kTileCells;
    const bool edge = t == last || (window > 0 && cell <= position + 63 - window);
    float scores[kScores][4] = {}, most[2], factor[2];
    scores_of(s, scores, q, row_stride, scale, edge, [&](int r, int c) {
      return cell + c <= own + r && (window == 0 || cell + c > own + r - window);
    });
    __syncthreads();  // keys are free
    if (t < last) {
      cells = pool_row(t + 1);
      keys.fetch(s.keys, k_pool, k_scales, [&](int c) { return cells + c; });
    }
    row_maxima(scores, most);
#pragma unroll
    for (int e = 0; e < 2; ++e) most[e] = fmaxf(most[e], -3.0e38f);  // a row may see nothing of a tile
    soft.raise(most, factor);
    soft.weigh(scores);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= factor[e / 2];
    if (t < last) {
      values.template land<1>(s.values, s.value_scale);
    } else {
      values.template land<0>(s.values, s.value_scale);
    }
    __syncthreads();  // values are there
    add_values(s, acc, scores);
  }
  if (!good) return report(faults, kFaultRange);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float sum = soft.sum[e];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    sum *= kWeightUnit;
    const int r = row0 + warp_id() % 4 * 16 + lane_id() / 4 + 8 * e;
    float* to = out + r * row_stride + (head + warp_id() / 4) * D + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) *reinterpret_cast<float2*>(to + 8 * n) = {div32(acc[n][2 * e], sum), div32(acc[n][2 * e + 1], sum)};
  }
}
