// sparse_prompt: attention of a prompt's rows over the cells of their selected blocks and those after the last complete block, on tensor
// cores. A thread block takes STRATA_QUERIES neighbouring rows and goes once through all blocks that any of them selected: the query
// heads of one KV head, of all rows, are the rows of a product. Macros: STRATA_KV (pool type), STRATA_DIM (values a head, a multiple of
// 64), STRATA_GROUP (query heads of a KV head), STRATA_RATIO (cells of a block, 2 .. 16). Grid (KV heads, rows / STRATA_QUERIES), 128
// threads: of a tile of 64 cells a warp has the scores of 16 and a quarter of the values.
#include "cell_tiles.cuh"
#include "op.cuh"

using namespace strata;

namespace {

constexpr int D = STRATA_DIM, Q = STRATA_QUERIES, kGroup = STRATA_GROUP, kRatio = STRATA_RATIO, kThreads = 128, kWarps = kThreads / 32;
constexpr int kStride = D + 8, kWeightRow = kTileCells + 4, kOwn = D / kWarps / 8;  // tiles of values, a warp's
constexpr int T = (Q * kGroup + 15) / 16, kRows = 16 * T, kQueryRows = Q * kGroup, kTileBlocks = kTileCells / kRatio;
constexpr int kRange = 16384, kWords = kRange / 32;  // blocks that are listed at a time
constexpr uint32_t kBlockMask = 0x0fffffffu;         // of an entry; above it a bit for each row that selected the block
using Tile = CellTile<STRATA_KV, D, kThreads>;

struct Room {
  union {
    alignas(16) uint16_t keys[kTileCells * kStride];
    uint32_t selected[Q][kWords];  // bits of blocks, while they are listed
  };
  alignas(16) uint16_t values[kTileCells * kStride], query[2][kQueryRows * kStride];
  alignas(16) float weights[kRows * kWeightRow], key_scale[Tile::kGroups * kTileCells], value_scale[Tile::kGroups * kTileCells];
  int base[2][kTileBlocks];  // first cell of a tile's blocks, counted over the pool
  float most[kWarps][kRows], sum[kWarps][kRows];
  alignas(16) int sums[kWarps];

  // After it: Q (budget + 1) entries, and kTileBlocks that nobody selected.
  __device__ __forceinline__ uint32_t& entry(int i) { return reinterpret_cast<uint32_t*>(this + 1)[i]; }
  __device__ __forceinline__ uint32_t entry(int i) const { return reinterpret_cast<const uint32_t*>(this + 1)[i]; }
};

struct Rows {
  const int *selected, *page_table;  // selected: of the first row
  int position, budget, sequence, pages_per_seq, num_pages, kv_heads, kv_head;

  __device__ __forceinline__ int blocks(int j) const { return (position + j + 1) / kRatio; }
  // First cell of a block, counted over the pool; -1 where its page is not there.
  __device__ __forceinline__ int base(int block) const {
    const int cell = block * kRatio, page = page_id(page_table, pages_per_seq, num_pages, sequence, cell / kPageCells);
    return page < 0 ? -1 : (page * kv_heads + kv_head) * kPageCells + cell % kPageCells;
  }
};

// Sum over the threads before this one; `total` becomes that of all.
__device__ __forceinline__ int before_thread(int value, int (&warps)[kWarps], int& total) {
  int sum = value;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, by);
    if (lane_id() >= by) sum += other;
  }
  if (lane_id() == 31) warps[warp_id()] = sum;
  __syncthreads();
  int before = sum - value;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp_id()) before += warps[w];
    total += warps[w];
  }
  return before;
}

// Lists the blocks that any row selected or ends in, ascending; their number.
__device__ __forceinline__ int list_blocks(Room& s, const Rows& rows) {
  const int last = (rows.position + Q - 1) / kRatio;
  int count = 0;
  for (int first = 0; first <= last; first += kRange) {
    for (int i = threadIdx.x; i < Q * kWords; i += kThreads) (&s.selected[0][0])[i] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Q; ++j) {
      const int blocks = rows.blocks(j), kept = min(blocks, rows.budget), tail = (rows.position + j + 1) % kRatio != 0;
      for (int i = threadIdx.x; i < kept + tail; i += kThreads) {
        const int b = (i < kept ? rows.selected[static_cast<size_t>(j) * rows.budget + i] : blocks) - first;
        if (b >= 0 && b < kRange) atomicOr(&s.selected[j][b / 32], 1u << b % 32);
      }
    }
    __syncthreads();
    constexpr int each = kWords / kThreads;
    uint32_t any[each];
    int own = 0, total;
#pragma unroll
    for (int w = 0; w < each; ++w) {
      any[w] = 0;
#pragma unroll
      for (int j = 0; j < Q; ++j) any[w] |= s.selected[j][threadIdx.x * each + w];
      own += __popc(any[w]);
    }
    int at = count + before_thread(own, s.sums, total);
#pragma unroll
    for (int w = 0; w < each; ++w)
      for (uint32_t rest = any[w]; rest != 0; rest &= rest - 1) {
        const int bit = __ffs(static_cast<int>(rest)) - 1;
        uint32_t members = 0;
#pragma unroll
        for (int j = 0; j < Q; ++j) members |= (s.selected[j][threadIdx.x * each + w] >> bit & 1u) << j;
        s.entry(at++) = static_cast<uint32_t>(first + (threadIdx.x * each + w) * 32 + bit) | members << 28;
      }
    count += total;
    __syncthreads();
  }
  if (threadIdx.x < kTileBlocks) s.entry(count + threadIdx.x) = s.entry(count - 1) & kBlockMask;
  return count;
}

// Row r of a product is head r % group of row r / group.
__device__ __forceinline__ void stage_queries(Room& s, const float* q, size_t stride) {
  const Matrix to{s.query[0], kStride, kQueryRows * kStride};
  for (int i = threadIdx.x; i < kQueryRows * D / 4; i += kThreads) {
    const int r = i / (D / 4), c = i % (D / 4) * 4;
    const float4 x = *reinterpret_cast<const float4*>(q + r / kGroup * stride + r % kGroup * D + c);
    to.put(r, c, f16_parts(x.x, x.y));
    to.put(r, c + 2, f16_parts(x.z, x.w));
  }
}

// Scores of a warp's 16 cells; minus infinity where a row does not see a cell. Rows past the last are the last, and see nothing.
__device__ __forceinline__ void scores_of(const Room& s, float (&acc)[T][2][4], int first, int position, float scale) {
#pragma unroll
  for (int m = 0; m < T; ++m) {
    const int row = min(16 * m + lane_id() % 16, kQueryRows - 1) - lane_id() % 16;
    query_scores<STRATA_KV, D>(acc[m], s.keys, s.key_scale, 16 * warp_id(), [&](int k, uint32_t(&hi)[4], uint32_t(&lo)[4]) {
      load_left<false>(hi, s.query[0], kStride, row, k);
      load_left<false>(lo, s.query[1], kStride, row, k);
    });
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int c = first + 16 * warp_id() + 8 * n + lane_id() % 4 * 2;  // and c + 1, of the same block
    const uint32_t entry = s.entry(c / kRatio), members = entry >> 28;
    const int cell = static_cast<int>(entry & kBlockMask) * kRatio + c % kRatio - position;
#pragma unroll
    for (int m = 0; m < T; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = (16 * m + lane_id() / 4 + e / 2 * 8) / kGroup;
        const bool seen = (members >> j & 1u) && cell + e % 2 <= j;
        acc[m][n][e] = seen ? acc[m][n][e] * scale : bits_float(0xff800000u);
      }
  }
}

// The maxima over all warps' cells, then every warp's weights to shared memory. A barrier between, none after.
__device__ __forceinline__ void weigh(Room& s, RunningSoftmax (&soft)[T], float (&scores)[T][2][4], float (&factor)[T][2]) {
  const int row = lane_id() / 4;
#pragma unroll
  for (int m = 0; m < T; ++m) {
    float most[2];
    row_maxima(scores[m], most);
    if (lane_id() % 4 == 0) s.most[warp_id()][16 * m + row] = most[0], s.most[warp_id()][16 * m + row + 8] = most[1];
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < T; ++m) {
    float most[2] = {-3.0e38f, -3.0e38f};  // a row may see nothing of a tile
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) most[e] = fmaxf(most[e], s.most[w][16 * m + row + 8 * e]);
    soft[m].raise(most, factor[m]);
    soft[m].weigh(scores[m]);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      each_pair(scores[m][n], n, [&](int r, int c, float x, float y) {
        *reinterpret_cast<float2*>(s.weights + (16 * m + r) * kWeightRow + 16 * warp_id() + c) = {x, y};
      });
  }
}

__device__ __forceinline__ void add_values(const Room& s, float (&acc)[T][kOwn][4], const float (&factor)[T][2]) {
#pragma unroll
  for (int m = 0; m < T; ++m)
#pragma unroll
    for (int n = 0; n < kOwn; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] *= factor[m][e / 2];
  const float* scale = s.value_scale + (Tile::kGroups > 1 ? 8 * kOwn * warp_id() / kKvGroup : 0) * kTileCells;
#pragma unroll
  for (int k = 0; k < kTileCells; k += 16) {
    const int c = k + lane_id() % 4 * 2;
    uint32_t hi[T][4], lo[T][4];
#pragma unroll
    for (int m = 0; m < T; ++m) {
      const float* row = s.weights + (16 * m + lane_id() / 4) * kWeightRow + c;
      const float2 x[4] = {*reinterpret_cast<const float2*>(row), *reinterpret_cast<const float2*>(row + 8 * kWeightRow),
                           *reinterpret_cast<const float2*>(row + 8), *reinterpret_cast<const float2*>(row + 8 * kWeightRow + 8)};
      weight_parts<STRATA_KV>(hi[m], lo[m], {x[0].x, x[0].y, x[1].x, x[1].y}, {x[2].x, x[2].y, x[3].x, x[3].y}, scale, c);
    }
#pragma unroll
    for (int n = 0; n < kOwn; n += 2) {
      uint32_t value[4];
      load_right<true>(value, s.values, kStride, 8 * (kOwn * warp_id() + n), k);
#pragma unroll
      for (int m = 0; m < T; ++m)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          mma_f16(acc[m][n + e], lo[m], value[2 * e], value[2 * e + 1]);
          mma_f16(acc[m][n + e], hi[m], value[2 * e], value[2 * e + 1]);
        }
    }
  }
}

// Sums of weights over all warps, then each warp's quarter of the values to `out`, the first row's.
__device__ __forceinline__ void store(Room& s, const RunningSoftmax (&soft)[T], const float (&acc)[T][kOwn][4], float* out, size_t stride) {
  const int own = lane_id() / 4;
#pragma unroll
  for (int m = 0; m < T; ++m)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = soft[m].sum[e];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (lane_id() % 4 == 0) s.sum[warp_id()][16 * m + own + 8 * e] = sum;
    }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < T; ++m)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int r = 16 * m + own + 8 * e;
      const float whole = kWeightUnit * ((s.sum[0][r] + s.sum[1][r]) + (s.sum[2][r] + s.sum[3][r]));
      if (r >= Q * kGroup) continue;
      float* to = out + r / kGroup * stride + r % kGroup * D + 8 * kOwn * warp_id() + lane_id() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kOwn; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = {div32(acc[m][n][2 * e], whole), div32(acc[m][n][2 * e + 1], whole)};
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2) sparse_prompt(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const int* selected,
    const void* k_pool, const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, int kv_heads,
    int pages_per_seq, int num_pages, int budget, float scale, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  Room& s = *reinterpret_cast<Room*>(shared);
  dependency_wait();
  dependency_launch();
  const int row = Q * static_cast<int>(blockIdx.y), kv_head = blockIdx.x;
  if (row + Q > *live) return;
  const Rows rows{selected + static_cast<size_t>(row) * budget, page_table, positions[row], budget, sequences[row], pages_per_seq,
                  num_pages, kv_heads, kv_head};
  if (rows.position < 0 || rows.position % Q != 0) return report(faults, kFaultRange);
  const size_t stride = static_cast<size_t>(kv_heads) * kGroup * D, at = row * stride + static_cast<size_t>(kv_head) * kGroup * D;
  stage_queries(s, q + at, stride);
  const int tiles = (list_blocks(s, rows) + kTileBlocks - 1) / kTileBlocks;
  __syncthreads();
  const auto find = [&](int t) {  // where a tile's blocks lie, a thread a block
    if (threadIdx.x >= kTileBlocks) return;
    const int base = rows.base(static_cast<int>(s.entry(t * kTileBlocks + threadIdx.x) & kBlockMask));
    if (base < 0) report(faults, kFaultRange);
    s.base[t % 2][threadIdx.x] = max(base, 0);
  };
  const auto place = [&](int t) { return [&s, t](int c) { return s.base[t % 2][c / kRatio] + c % kRatio; }; };
  find(0);
  __syncthreads();
  Tile keys, values;
  keys.fetch(s.keys, k_pool, k_scales, place(0));
  RunningSoftmax soft[T];
  float acc[T][kOwn][4] = {};
  for (int t = 0; t < tiles; ++t) {
    keys.template land<0>(s.keys, s.key_scale);
    __syncthreads();  // keys are there, values are free
    values.fetch(s.values, v_pool, v_scales, place(t));
    if (t + 1 < tiles) find(t + 1);
    float scores[T][2][4] = {}, factor[T][2];
    scores_of(s, scores, t * kTileCells, rows.position, scale);
    weigh(s, soft, scores, factor);  // its barrier: keys are free
    if constexpr (STRATA_KV == kKvInt8) values.template land<0>(s.values, s.value_scale);  // before registers take the next keys
    if (t + 1 < tiles) keys.fetch(s.keys, k_pool, k_scales, place(t + 1));
    if constexpr (STRATA_KV == kKvF16) {
      if (t + 1 < tiles) {
        values.template land<1>(s.values, s.value_scale);
      } else {
        values.template land<0>(s.values, s.value_scale);
      }
    }
    __syncthreads();  // weights and values are there
    add_values(s, acc, factor);
  }
  store(s, soft, acc, out + at, stride);
}
