// sparse_prompt: attention of a prompt's row over the cells of its selected blocks and those after the last complete block, on tensor
// cores: the query heads of one KV head are the rows of a product. Macros: STRATA_KV (pool type), STRATA_DIM (values a head, a multiple
// of 64). Grid (KV heads, rows), 128 threads: of a tile of 64 cells a warp has the scores of 16 and a quarter of the values.
#include "cell_tiles.cuh"
#include "op.cuh"

using namespace strata;

namespace {

constexpr int D = STRATA_DIM, kThreads = 128, kWarps = kThreads / 32, kMostBlocks = 1024;
constexpr int kStride = D + 8, kWeightRow = kTileCells + 8, kOwn = D / kWarps / 8;  // tiles of values, a warp's
using Tile = CellTile<STRATA_KV, D, kThreads>;

struct Room {
  alignas(16) uint16_t keys[kTileCells * kStride], values[kTileCells * kStride], query[2][16 * kStride], weights[16 * kWeightRow];
  int block[kMostBlocks];  // first cell of a listed block, counted over the pool
  float most[kWarps][16], sum[kWarps][16];
};

struct List {
  const int* block;
  int total, ratio;
  __device__ __forceinline__ int row(int i) const {
    i = min(i, total - 1);
    return block[i / ratio] + i % ratio;
  }
};

// The list of a row's cells, by all threads; false where a page is not there.
__device__ __forceinline__ bool list_cells(int* block, const int* selected, int kept, int blocks, int entries, const int* page_table,
                                           int pages_per_seq, int num_pages, int sequence, int kv_heads, int kv_head, int ratio) {
  bool good = true;
  for (int i = threadIdx.x; i < entries; i += kThreads) {
    const int cell = (i < kept ? selected[i] : blocks) * ratio;
    const int page = cell < 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequence, cell / kPageCells);
    good &= page >= 0;
    block[i] = (max(page, 0) * kv_heads + kv_head) * kPageCells + cell % kPageCells;
  }
  return good;
}

// 16 heads (those past `heads` zero) as f16 parts.
__device__ __forceinline__ void stage_query(Room& s, const float* q, int heads) {
  const Matrix to{s.query[0], kStride, 16 * kStride};
  for (int i = threadIdx.x; i < 16 * D / 4; i += kThreads) {
    const int h = i / (D / 4), c = i % (D / 4) * 4;
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (h < heads) x = *reinterpret_cast<const float4*>(q + h * D + c);
    to.put(h, c, f16_parts(x.x, x.y));
    to.put(h, c + 2, f16_parts(x.z, x.w));
  }
}

// Scores of a warp's 16 cells, those from `total` on minus infinity.
__device__ __forceinline__ void scores_of(const Room& s, float (&acc)[2][4], int first, int total, float scale) {
#pragma unroll 4
  for (int k = 0; k < D; k += 16) {
    uint32_t hi[4], lo[4], key[4];
    load_left<false>(hi, s.query[0], kStride, 0, k);
    load_left<false>(lo, s.query[1], kStride, 0, k);
    load_right<false>(key, s.keys, kStride, 16 * warp_id(), k);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      mma_f16(acc[n], lo, key[2 * n], key[2 * n + 1]);
      mma_f16(acc[n], hi, key[2 * n], key[2 * n + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int cell = first + 16 * warp_id() + 8 * n + lane_id() % 4 * 2 + e % 2;
      acc[n][e] = cell < total ? acc[n][e] * scale : bits_float(0xff800000u);
    }
}

// The maxima over all warps' cells, then every warp's weights to shared memory. A barrier between, none after.
__device__ __forceinline__ void weigh(Room& s, RunningSoftmax& soft, float (&scores)[2][4], float (&factor)[2]) {
  float most[2];
  row_maxima(scores, most);
  const int row = lane_id() / 4;
  if (lane_id() % 4 == 0) s.most[warp_id()][row] = most[0], s.most[warp_id()][row + 8] = most[1];
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most[e] = fmaxf(most[e], s.most[w][row + 8 * e]);
  soft.raise(most, factor);
  soft.weigh(scores);
#pragma unroll
  for (int n = 0; n < 2; ++n)
    each_pair(scores[n], n, [&](int r, int c, float x, float y) {
      *reinterpret_cast<uint32_t*>(s.weights + r * kWeightRow + 16 * warp_id() + c) = pack_f16(x, y);
    });
}

__device__ __forceinline__ void add_values(const Room& s, float (&acc)[kOwn][4]) {
#pragma unroll
  for (int k = 0; k < kTileCells; k += 16) {
    uint32_t weight[4];
    load_left<false>(weight, s.weights, kWeightRow, 0, k);
#pragma unroll
    for (int n = 0; n < kOwn; n += 2) {
      uint32_t value[4];
      load_right<true>(value, s.values, kStride, 8 * (kOwn * warp_id() + n), k);
      mma_f16(acc[n], weight, value[0], value[1]);
      mma_f16(acc[n + 1], weight, value[2], value[3]);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2) sparse_prompt(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const int* selected,
    const void* k_pool, const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, int heads,
    int kv_heads, int pages_per_seq, int num_pages, int ratio, int budget, float scale, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  Room& s = *reinterpret_cast<Room*>(shared);
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y, kv_head = blockIdx.x, group = heads / kv_heads;
  if (row >= *live) return;
  const int position = positions[row], blocks = (position + 1) / ratio, kept = min(blocks, budget);
  const int total = kept * ratio + position + 1 - blocks * ratio, entries = (total + ratio - 1) / ratio;
  const bool good = position >= 0 && list_cells(s.block, selected + static_cast<size_t>(row) * budget, kept, blocks, entries, page_table,
                                                pages_per_seq, num_pages, sequences[row], kv_heads, kv_head, ratio);
  const size_t at = (static_cast<size_t>(row) * heads + kv_head * group) * D;
  stage_query(s, q + at, group);
  if (__syncthreads_or(!good)) return report(faults, kFaultRange);
  const List list{s.block, total, ratio};
  const int tiles = (total + kTileCells - 1) / kTileCells;
  Tile keys, values;
  keys.fetch(s.keys, k_pool, k_scales, [&](int c) { return list.row(c); });
  RunningSoftmax soft;
  float acc[kOwn][4] = {};
  for (int t = 0; t < tiles; ++t) {
    const int first = t * kTileCells;
    keys.land<0>(s.keys);
    __syncthreads();  // keys are there, values are free
    values.fetch(s.values, v_pool, v_scales, [&](int c) { return list.row(first + c); });
    float scores[2][4] = {}, factor[2];
    scores_of(s, scores, first, total, scale);
    weigh(s, soft, scores, factor);  // its barrier: keys are free
    if (t + 1 < tiles) {
      keys.fetch(s.keys, k_pool, k_scales, [&](int c) { return list.row(first + kTileCells + c); });
      values.land<1>(s.values);
    } else {
      values.land<0>(s.values);
    }
#pragma unroll
    for (int n = 0; n < kOwn; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= factor[e / 2];
    __syncthreads();  // weights and values are there
    add_values(s, acc);
  }
  const int own = lane_id() / 4;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float sum = soft.sum[e];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    if (lane_id() % 4 == 0) s.sum[warp_id()][own + 8 * e] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int r = own + 8 * e;
    const float whole = (s.sum[0][r] + s.sum[1][r]) + (s.sum[2][r] + s.sum[3][r]);
    if (r >= group) continue;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      float2* to = reinterpret_cast<float2*>(out + at + static_cast<size_t>(r) * D + 8 * (kOwn * warp_id() + n) + lane_id() % 4 * 2);
      *to = {div32(acc[n][2 * e], whole), div32(acc[n][2 * e + 1], whole)};
    }
  }
}
