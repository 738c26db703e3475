// block_scores, select_blocks, rank_blocks: which blocks of cells a row attends to (docs/contract.md).
#include "rows.cuh"

using namespace strata;

namespace {

constexpr int kSelectThreads = 512;

// A row's scores for ranking: equal order to topk_key's upper half.
__device__ __forceinline__ uint32_t rank_bits(float score) { return static_cast<uint32_t>(topk_key(score, 0) >> 32); }

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

// Sum over the threads before this one; `total` becomes that of all. Shared memory: one int a warp.
__device__ __forceinline__ int sum_before(int value, int* warps, int& total) {
  int sum = value;
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, half);
    if (lane_id() >= half) sum += other;
  }
  __syncthreads();
  if (lane_id() == 31) warps[warp_id()] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp_id()) before += warps[w];
    total += warps[w];
  }
  return before + sum - value;
}

// One thread block: the `budget` best of `blocks` > budget scores, ascending by block. The bits of the last score that is
// kept are found 8 at a time; of the blocks that have exactly that score the first ones are kept.
__device__ __forceinline__ void choose(const float* scores, int blocks, int budget, int* out) {
  __shared__ int counts[256], warps[kSelectThreads / 32], byte_at, left;
  uint32_t known = 0, mask = 0;
  if (threadIdx.x == 0) left = budget;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) {
      const uint32_t bits = rank_bits(__ldcg(scores + i));
      if ((bits & mask) == known) atomicAdd(&counts[bits >> shift & 255u], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int byte = 255;
      for (; counts[byte] < left; --byte) left -= counts[byte];
      byte_at = byte;
    }
    __syncthreads();
    known |= static_cast<uint32_t>(byte_at) << shift;
    mask |= 255u << shift;
  }
  const int equal = left, each = (blocks + blockDim.x - 1) / blockDim.x;
  const int begin = min(blocks, static_cast<int>(threadIdx.x) * each), end = min(blocks, begin + each);
  int larger = 0, same = 0, total;
  for (int i = begin; i < end; ++i) {
    const uint32_t bits = rank_bits(__ldcg(scores + i));
    larger += bits > known, same += bits == known;
  }
  const int same_before = sum_before(same, warps, total);
  const int kept = max(0, min(same, equal - same_before));
  int at = sum_before(larger + kept, warps, total), seen = same_before;
  for (int i = begin; i < end; ++i) {
    const uint32_t bits = rank_bits(__ldcg(scores + i));
    if (bits > known || (bits == known && seen++ < equal)) out[at++] = i;
  }
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
// are skipped.
__global__ void __launch_bounds__(kSelectThreads) score_and_select(const int* live, const int* positions, const int* sequences,
                                                                   const int* page_table, const float* q, const float* pooled, int* out,
                                                                   float* scores, uint32_t* arrived, int heads, int dim, int ratio, int budget,
                                                                   int stride, int pages_per_seq, int num_pages, uint32_t* faults) {
  __shared__ bool last;
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y;
  if (row >= *live) return;
  const int blocks = (positions[row] + 1) / ratio;
  if (blocks <= budget) return;
  if (blocks > stride || sequences[row] < 0) return report(faults, kFaultRange);
  scores += static_cast<size_t>(row) * stride;
  const Scorer scorer{page_table, pages_per_seq, num_pages, q + static_cast<size_t>(row) * heads * dim, pooled, heads, dim, kPageCells / ratio};
  const int step = gridDim.x * (kSelectThreads / 32);
  for (int b = blockIdx.x * (kSelectThreads / 32) + warp_id(); b < blocks; b += step) {
    const float score = scorer.score(sequences[row], b, faults);
    if (lane_id() == 0) scores[b] = score;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived + row, 1u) == gridDim.x - 1;
    if (last) arrived[row] = 0;
    __threadfence();
  }
  __syncthreads();
  if (last) choose(scores, blocks, budget, out + static_cast<size_t>(row) * budget);
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
