// Which blocks of cells the rows of a prompt attend to: prompt_scores on tensor cores, prompt_select by counting. A launch takes rows
// from row0 on, as many as `scores` has room for; 64 rows at a time are one block of one sequence. Macro: STRATA_DIM, values of an
// index key, a multiple of 16 up to 128.
#include "rows.cuh"
#include "select.cuh"
#include "tensor.cuh"

using namespace strata;

namespace {

constexpr int D = STRATA_DIM, kSteps = D / 16;
constexpr int kScoreThreads = 256, kTile = 128, kKeyRow = D + 8;  // keys of a thread block; its rows: 64
constexpr int kBins = 2048, kListed = 1024;

// Keys of a page table's blocks [first, first + kTile) as f16 parts; keys past the last are that one.
__device__ __forceinline__ void stage_keys(const Matrix& to, const float* pooled, const int* page_table, int pages_per_seq, int num_pages,
                                           int sequence, int first, int last, int per_page, uint32_t* faults) {
  for (int i = threadIdx.x; i < kTile * D / 4; i += kScoreThreads) {
    const int b = i / (D / 4), c = i % (D / 4) * 4, block = min(first + b, last);
    const int page = page_id(page_table, pages_per_seq, num_pages, sequence, block / per_page);
    if (page < 0) report(faults, kFaultRange);
    const float* key = pooled + (static_cast<size_t>(max(page, 0)) * per_page + block % per_page) * D;
    const float4 x = *reinterpret_cast<const float4*>(key + c);
    to.put(b, c, f16_parts(x.x, x.y));
    to.put(b, c + 2, f16_parts(x.z, x.w));
  }
}

// acc[n] = 16 rows of q, whose head begins at `q`, times 8 keys each.
template <int N>
__device__ __forceinline__ void head_scores(float (&acc)[N][4], const float* q, size_t stride, const Matrix& keys, int column) {
#pragma unroll 2
  for (int s = 0; s < kSteps; ++s) {
    uint32_t hi[4], lo[4];
    load_left_parts(hi, lo, q, stride, 16 * s);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b_hi[4], b_lo[4];
      load_right<false>(b_hi, keys.at, keys.stride, column + 8 * n, 16 * s);
      load_right<false>(b_lo, keys.at + keys.apart, keys.stride, column + 8 * n, 16 * s);
      add_parts(acc, n, hi, lo, b_hi, b_lo);
    }
  }
}

}  // namespace

extern "C" {

// Grid (tiles of 128 blocks, 64 rows each), 256 threads: a warp 16 rows and 64 blocks. Scores are sums over heads of max(q . key, 0);
// `most` [rows of the launch] becomes the bits of a row's largest, which are those of a number that is not negative.
__global__ void __launch_bounds__(kScoreThreads, 2) prompt_scores(const int* live, const int* positions, const int* sequences,
                                                                  const int* page_table, const float* q, const float* pooled,
                                                                  float* scores, uint32_t* most, int heads, int ratio, int budget,
                                                                  int stride, int pages_per_seq, int num_pages, int row0,
                                                                  uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  const Matrix keys{reinterpret_cast<uint16_t*>(shared), kKeyRow, kTile * kKeyRow};
  dependency_wait();
  dependency_launch();
  const int first_row = row0 + 64 * blockIdx.y, first = kTile * blockIdx.x;
  if (first_row + 64 > *live) return;
  const int position = positions[first_row], sequence = sequences[first_row], blocks = (position + 64) / ratio;
  if (blocks <= budget || first >= blocks) return;
  if (blocks > stride || position < 0 || sequence < 0) return report(faults, kFaultRange);
  stage_keys(keys, pooled, page_table, pages_per_seq, num_pages, sequence, first, blocks - 1, kPageCells / ratio, faults);
  __syncthreads();
  const int row = first_row + warp_id() % 4 * 16, column = warp_id() / 4 * 64;
  float total[8][4] = {};
  for (int h = 0; h < heads; ++h) {
    float acc[8][4] = {};
    head_scores(acc, q + (static_cast<size_t>(row) * heads + h) * D, static_cast<size_t>(heads) * D, keys, column);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) total[n][e] += acc[n][e] > 0.0f ? acc[n][e] : 0.0f;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int r = row + lane_id() / 4 + 8 * e, seen = (position + r - first_row + 1) / ratio;
    float* to = scores + static_cast<size_t>(r - row0) * stride;
    float best = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int b = first + column + 8 * n + lane_id() % 4 * 2;
      const float x = total[n][2 * e], y = total[n][2 * e + 1];
      if (b + 1 < seen) {
        *reinterpret_cast<float2*>(to + b) = {x, y};
        best = fmaxf(best, fmaxf(x, y));
      } else if (b < seen) {
        to[b] = x;
        best = fmaxf(best, x);
      }
    }
    best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, 2));
    if (lane_id() % 4 == 0) atomicMax(most + (r - row0), float_bits(best));
  }
}

// A thread block a row. Scores are counted in bins of equal width up to the largest; those of the last bin of which some are kept are
// ranked among each other. `most` becomes zero. Shared memory: counts, then a bit a block.
__global__ void __launch_bounds__(kSelectThreads) prompt_select(const int* live, const int* positions, const float* scores,
                                                                uint32_t* most, int* out, int budget, int ratio, int stride, int row0,
                                                                uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ int warps[kSelectThreads / 32], listed;
  __shared__ int place[kListed];
  __shared__ uint32_t bits[kListed];
  int* counts = reinterpret_cast<int*>(shared);
  uint32_t* marks = reinterpret_cast<uint32_t*>(counts + kBins);
  dependency_wait();
  dependency_launch();
  const int row = row0 + blockIdx.x;
  if (row >= *live) return;
  const int blocks = (positions[row] + 1) / ratio;
  out += static_cast<size_t>(row) * budget;
  if (blocks > stride) return report(faults, kFaultRange);
  if (blocks <= budget) {
    for (int i = threadIdx.x; i < blocks; i += kSelectThreads) out[i] = i;
    if (threadIdx.x == 0) most[blockIdx.x] = 0;
    return;
  }
  scores += static_cast<size_t>(blockIdx.x) * stride;
  const float largest = bits_float(most[blockIdx.x]);
  const float scale = largest > 1e-30f ? div32(static_cast<float>(kBins - 1), largest) : 0.0f;
  const auto bin_of = [&](float x) { return min(kBins - 1, static_cast<int>(x * scale)); };  // never falls where x rises
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) counts[i] = i == 0 ? blocks : 0;
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  if (threadIdx.x == 0) most[blockIdx.x] = 0;
  if (!finite32(largest)) return report(faults, kFaultNonFinite);
#pragma unroll 8
  for (int i = threadIdx.x; i < blocks; i += kSelectThreads) {
    const int bin = bin_of(__ldcg(scores + i));
    if (bin > 0) atomicAdd(&counts[bin], 1);
  }
  int left = budget;
  const int last = last_bin<kBins>(counts, warps, left);
#pragma unroll 4
  for (int i = threadIdx.x; i - lane_id() < blocks; i += kSelectThreads) {
    const float x = i < blocks ? __ldcg(scores + i) : 0.0f;
    const int bin = i < blocks ? bin_of(x) : -1;
    const uint32_t above = __ballot_sync(kFullWarp, bin > last), same = __ballot_sync(kFullWarp, bin == last);
    if (lane_id() == 0) marks[i / 32] = above;
    if (same == 0) continue;
    int at = 0;
    if (lane_id() == 0) at = atomicAdd(&listed, __popc(same));
    at = __shfl_sync(kFullWarp, at, 0) + __popc(same & ((1u << lane_id()) - 1u));
    if (bin == last && at < kListed) place[at] = i, bits[at] = rank_bits(x);
  }
  __syncthreads();
  const int n = listed;
  if (n > kListed) return choose(scores, blocks, budget, out);
  for (int i = threadIdx.x; i < n; i += kSelectThreads) {
    int before = 0;
    for (int j = 0; j < n; ++j) before += bits[j] > bits[i] || (bits[j] == bits[i] && place[j] < place[i]);
    if (before < left) atomicOr(&marks[place[i] / 32], 1u << place[i] % 32);
  }
  __syncthreads();
  const int words = (blocks + 31) / 32, each = (words + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(words, static_cast<int>(threadIdx.x) * each), end = min(words, begin + each);
  int own = 0, total;
  for (int w = begin; w < end; ++w) own += __popc(marks[w]);
  int at = sum_before(own, warps, total);
  for (int w = begin; w < end; ++w)
    for (uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) out[at++] = 32 * w + __ffs(static_cast<int>(rest)) - 1;
}

}  // extern "C"
