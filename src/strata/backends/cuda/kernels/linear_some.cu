// linear_some: y[m][ids[j]] for some rows of a quantised weight [n, k] and q8 rows; as linear_q, but weight rows come from a list.
// Macros: STRATA_TYPE, STRATA_ROWS (M), STRATA_SEGMENTS (of k), STRATA_AHEAD, STRATA_LENGTH (product.cuh). grid.x: thread blocks of
// the longest list, grid.y: groups of M rows.
#include "op.cuh"
#include "product.cuh"

using namespace strata;

extern "C" __global__ void __launch_bounds__(256) linear_some(const int* live, const int8_t* q, const float* d, const int16_t* sums,
                                                              const uint8_t* w, const int* num_ids, const int* ids, float* y,
                                                              uint32_t* faults, int n, int k) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int M = STRATA_ROWS, segs = STRATA_SEGMENTS, per_warp = 32 / segs;
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  float* scratch = reinterpret_cast<float*>(table + Packed<T>::kTableWords);
  const StagedRows a = staged_rows<M, segs>(reinterpret_cast<uint8_t*>(scratch + blockDim.x * M), k);
  const int first = (blockIdx.x * (static_cast<int>(blockDim.x) / 32) + warp_id()) * per_warp;
  dependency_launch();
  Packed<T>::template fill<1>(table);
  dependency_wait();
  const int row0 = blockIdx.y * M, rows = min(*live - row0, M), count = *num_ids;
  if (rows <= 0 || static_cast<int>(blockIdx.x * (blockDim.x / 32) * per_warp) >= count) return;
  int row = ids[min(first + lane_id() / segs, count - 1)];
  if (row < 0 || row >= n) {
    report(faults, kFaultRange);
    row = 0;
  }
  SegmentChain<T, M, segs, STRATA_AHEAD, STRATA_LENGTH> chain(w, n, k / kBlock, row);
  chain.load_first();
  stage_rows<M, segs>(a, q + static_cast<size_t>(row0) * k, d + static_cast<size_t>(row0) * a.blocks,
                      sums + static_cast<size_t>(row0) * 2 * a.blocks, k, rows);
  __syncthreads();
  float part[M];
  chain.run(table, a, part);
  add_segments<M, segs, 32 / segs / per_warp>(part, scratch + warp_id() * M * 32, [&](int r, int m, float total) {
    if (m < rows && first + r < count) y[static_cast<size_t>(row0 + m) * n + ids[first + r]] = total;
  });
}
