// block_scores, select_blocks, rank_blocks: which blocks of cells a row attends to (docs/contract.md).
#include "ahead.cuh"
#include "lanes.cuh"
#include "rows.cuh"
#include "select.cuh"

using namespace strata;

namespace {

struct Scorer {
  const int* page_table;
  int pages_per_seq, num_pages;
  const float *q, *pooled;  // q [heads, dim] of the row
  int heads, dim, per_page;

  // One warp: sum over heads, ascending, of max(q . key, 0).
  __device__ __forceinline__ float score(int sequence, int block, uint32_t* faults) const {
    const int page = page_id(page_table, pages_per_seq, num_pages, sequence, block / per_page);
    if (page < 0) {
      report(faults, kFaultRange);
      return 0.0f;
    }
    const float* key = pooled + (static_cast<size_t>(page) * per_page + block % per_page) * dim;
    float total = 0.0f;
    for (int h = 0; h < heads; ++h) {
      const float dot = warp_dot(key, q + h * dim, dim);
      total += dot > 0.0f ? dot : 0.0f;
    }
    return total;
  }
};

// Shared memory of score_and_select: the query heads, then counts by the scores' upper bits, in whose place the last thread block
// lists blocks; then four bits of a byte for each four blocks, set where one may be chosen.
constexpr int kBins = 4096, kBinShift = 20, kListed = 4096;

struct Listed {
  int* place;
  uint32_t* bits;
  uint8_t* marks;
};

// One thread block: marks scores in bins >= `bin`, and lists them in ascending order; their number, which may be above kListed.
__device__ __forceinline__ int list_above(const Listed& list, const float* scores, int blocks, uint32_t bin, int* warps) {
  constexpr int ahead = 8;
  const int fours = (blocks + 3) / 4, words = (fours + 3) / 4;
  for (int i0 = threadIdx.x; i0 < 4 * words; i0 += ahead * kSelectThreads) {
    float4 four[ahead];
#pragma unroll
    for (int a = 0; a < ahead; ++a)
      if (i0 + a * kSelectThreads < fours) four[a] = __ldcg(reinterpret_cast<const float4*>(scores) + i0 + a * kSelectThreads);
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const int i = i0 + a * kSelectThreads;
      if (i >= 4 * words) break;
      const float score[4] = {four[a].x, four[a].y, four[a].z, four[a].w};
      unsigned mark = 0;
      for (int e = 0; e < 4; ++e)
        if (4 * i + e < blocks && rank_bits(score[e]) >> kBinShift >= bin) mark |= 1u << e;
      list.marks[i] = static_cast<uint8_t>(mark);
    }
  }
  __syncthreads();
  const uint32_t* marks = reinterpret_cast<const uint32_t*>(list.marks);
  const int each = (words + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(words, static_cast<int>(threadIdx.x) * each), end = min(words, begin + each);
  int own = 0, total;
  for (int i = begin; i < end; ++i) own += __popc(marks[i]);
  int at = sum_before(own, warps, total);
  if (total > kListed) return total;
  for (int i = begin; i < end; ++i)
    for (uint32_t left = marks[i]; left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      list.place[at++] = 16 * i + bit / 8 * 4 + bit % 8;
    }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < total; i += kSelectThreads) list.bits[i] = rank_bits(__ldcg(scores + list.place[i]));
  __syncthreads();
  return total;
}

// `choose` with the scores' counts by bin, in device memory, which become zero.
__device__ __forceinline__ void choose_counted(uint8_t* shared, int* bins, const float* scores, int blocks, int budget, int* out) {
  __shared__ int warps[kSelectThreads / 32];
  int* counts = reinterpret_cast<int*>(shared);
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) counts[i] = __ldcg(bins + i), bins[i] = 0;
  int left = budget;
  const uint32_t bin = static_cast<uint32_t>(last_bin<kBins>(counts, warps, left));
  const Listed list{counts, reinterpret_cast<uint32_t*>(counts + kListed), shared + 8 * kListed};
  const int n = list_above(list, scores, blocks, bin, warps);
  if (n > kListed) return choose(scores, blocks, budget, out);
  const auto bits = [&](int i) { return list.bits[i]; };
  const uint32_t known = last_kept(bin << kBinShift, ~0u << kBinShift, n, warps, left, bits);
  write_kept(known, left, n, warps, out, bits, [&](int i) { return list.place[i]; });
}

// Scores of blocks by four threads each (lanes.cuh), whose dim is a multiple of 32 up to 128: q in shared memory.
__device__ __forceinline__ float quad_score(const float* key, const float* q, int heads, int dim, int j) {
  Eight<QuantType::F32> part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (32 * i < dim) {  // not through the read-only cache: the launch before wrote some of it
      part[i].low = *reinterpret_cast<const float4*>(key + 32 * i + 8 * j);
      part[i].high = *reinterpret_cast<const float4*>(key + 32 * i + 8 * j + 4);
    }
  float total = 0.0f;
  for (int h = 0; h < heads; ++h) {
    float acc[8] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (32 * i >= dim) break;
      float v[8];
      part[i].floats(v);
      fma8(v, q + h * dim + 32 * i + 8 * j, acc);
    }
    const float dot = quad_tree_sum(acc);
    total += dot > 0.0f ? dot : 0.0f;
  }
  return total;
}

}  // namespace

extern "C" {

// Grid (blocks, rows), a warp a block; rows whose blocks fit in the budget are skipped.
__global__ void block_scores(const int* live, const int* positions, const int* sequences, const int* page_table, const float* q,
                             const float* pooled, float* out, int heads, int dim, int ratio, int budget, int stride, int pages_per_seq,
                             int num_pages, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y;
  if (row >= *live) return;
  const int blocks = (positions[row] + 1) / ratio;
  if (blocks <= budget) return;
  if (blocks > stride) return report(faults, kFaultRange);
  const Scorer scorer{page_table, pages_per_seq, num_pages, q + static_cast<size_t>(row) * heads * dim, pooled, heads, dim, kPageCells / ratio};
  const int step = gridDim.x * (blockDim.x / 32);
  for (int b = blockIdx.x * (blockDim.x / 32) + warp_id(); b < blocks; b += step) {
    const float score = sequences[row] < 0 ? 0.0f : scorer.score(sequences[row], b, faults);
    if (lane_id() == 0) out[static_cast<size_t>(row) * stride + b] = score;
  }
}

// A thread block a row.
__global__ void __launch_bounds__(kSelectThreads) select_blocks(const int* live, const int* positions, const float* scores, int* out,
                                                                int budget, int ratio, int stride, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x;
  if (row >= *live) return;
  const int blocks = (positions[row] + 1) / ratio;
  if (blocks > stride) return report(faults, kFaultRange);
  out += static_cast<size_t>(row) * budget;
  if (blocks > budget) return choose(scores + static_cast<size_t>(row) * stride, blocks, budget, out);
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) out[i] = i;
}

// Scores by all thread blocks of a row (grid (workers, rows)), the selection by the last of them; rows whose blocks fit in the budget
// are skipped. arrived [rows] and bins [rows, kBins] are zero before and after; stride and dim: multiples of 4 and 32, dim at most 128.
__global__ void __launch_bounds__(kSelectThreads, 2) score_and_select(const int* live, const int* positions, const int* sequences,
                                                                      const int* page_table, const float* q, const float* pooled, int* out,
                                                                      float* scores, uint32_t* arrived, int* bins, int heads, int dim,
                                                                      int ratio, int budget, int stride, int pages_per_seq, int num_pages,
                                                                      uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ bool last;
  float* query = reinterpret_cast<float*>(shared);
  uint8_t* rest = shared + 4 * heads * dim;
  int* counts = reinterpret_cast<int*>(rest);
  ask_ahead(ahead, ahead_bytes);
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y;
  if (row >= *live) return;
  const int blocks = (positions[row] + 1) / ratio;
  if (blocks <= budget) return;
  const int sequence = sequences[row];
  if (blocks > stride || sequence < 0) return report(faults, kFaultRange);
  scores += static_cast<size_t>(row) * stride, bins += row * kBins, q += static_cast<size_t>(row) * heads * dim;
  for (int i = threadIdx.x; i < heads * dim; i += kSelectThreads) query[i] = q[i];
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) counts[i] = 0;
  __syncthreads();
  const int quads = kSelectThreads / 4, j = threadIdx.x % 4, per_page = kPageCells / ratio;
  for (int b0 = blockIdx.x * quads; b0 < blocks; b0 += gridDim.x * quads) {  // the whole warp: lanes exchange
    const int b = b0 + static_cast<int>(threadIdx.x) / 4, safe = min(b, blocks - 1);
    const int page = page_id(page_table, pages_per_seq, num_pages, sequence, safe / per_page);
    if (page < 0) report(faults, kFaultRange);
    const float* key = pooled + (static_cast<size_t>(max(page, 0)) * per_page + safe % per_page) * dim;
    const float score = quad_score(key, query, heads, dim, j);
    if (j != 0 || b >= blocks) continue;
    scores[b] = score;
    atomicAdd(&counts[rank_bits(score) >> kBinShift], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads)
    if (counts[i] != 0) atomicAdd(bins + i, counts[i]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived + row, 1u) == gridDim.x - 1;
    if (last) arrived[row] = 0;
    __threadfence();
  }
  __syncthreads();
  if (last) choose_counted(rest, bins, scores, blocks, budget, out + static_cast<size_t>(row) * budget);
}

// Both, a thread block a row in turn: many rows share `scores` [gridDim.x, stride].
__global__ void __launch_bounds__(kSelectThreads) rank_blocks(const int* live, const int* positions, const int* sequences,
                                                              const int* page_table, const float* q, const float* pooled, int* out,
                                                              float* scores, int heads, int dim, int ratio, int budget, int stride,
                                                              int pages_per_seq, int num_pages, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  scores += static_cast<size_t>(blockIdx.x) * stride;
  for (int row = blockIdx.x; row < *live; row += gridDim.x) {
    const int blocks = (positions[row] + 1) / ratio;
    int* chosen = out + static_cast<size_t>(row) * budget;
    if (blocks > stride || sequences[row] < 0) {
      report(faults, kFaultRange);
    } else if (blocks <= budget) {
      for (int i = threadIdx.x; i < blocks; i += blockDim.x) chosen[i] = i;
    } else {
      const Scorer scorer{page_table, pages_per_seq, num_pages, q + static_cast<size_t>(row) * heads * dim, pooled, heads, dim, kPageCells / ratio};
      for (int b = warp_id(); b < blocks; b += static_cast<int>(blockDim.x) / 32) {
        const float score = scorer.score(sequences[row], b, faults);
        if (lane_id() == 0) scores[b] = score;
      }
      __syncthreads();
      choose(scores, blocks, budget, chosen);
      __syncthreads();
    }
  }
}

}  // extern "C"
