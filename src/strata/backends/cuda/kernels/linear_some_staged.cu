// linear_some (linear_some.cu) by thread blocks that stay: each listed row is copied whole, from its own place, and a warp's next rows are on their way
// through a ring in shared memory while one is computed. Macros: STRATA_TYPE, STRATA_ROWS (M), STRATA_SEGMENTS, STRATA_LENGTH (blocks of every
// segment), STRATA_THREADS, STRATA_STAGES (of a warp's ring), STRATA_BLOCKS (thread blocks a multiprocessor is meant to hold).
// grid.y: groups of M rows.
#include "op.cuh"
#include "staged_weights.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int M = STRATA_ROWS, kSegs = STRATA_SEGMENTS, kLength = STRATA_LENGTH, kBlocks = kSegs * kLength, kValues = 32 * kBlocks;
constexpr int kThreads = STRATA_THREADS, kStages = STRATA_STAGES, kRows = 32 / kSegs;
using Weights = StagedWeights<T, kSegs, kLength>;
using Listed = RowsListed<kBlocks, kRows>;
constexpr int kStageBytes = (Weights::kBytes + 15) / 16 * 16;
static_assert(4 * 32 * M <= kStageBytes, "an item's segments fit where its weights were");

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, STRATA_BLOCKS)
    linear_some_staged(const int* live, const int8_t* q, const float* d, const int16_t* sums, const uint8_t* w, const int* num_ids,
                       const int* ids, float* y, uint32_t* faults, int n) {
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  const StagedRows a = staged_rows<M, kSegs>(shared + 4 * Packed<T>::kTableWords, kValues);
  constexpr int kBefore = 4 * Packed<T>::kTableWords + M * (kValues + 4 * kSegmentPad * kSegs + 8 * kBlocks);
  uint8_t* ring = shared + (kBefore + 15) / 16 * 16 + warp_id() * kStages * kStageBytes;
  dependency_settled();  // the list is an input of the step
  const int count = *num_ids, each = gridDim.x * (kThreads / 32) * kRows, mine = (warp_id() * gridDim.x + blockIdx.x) * kRows;
  // Rows of the item that begins at place `at` of the list; what lies behind its end is not used.
  const auto listed = [&](int at) {
    Listed rows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows.ids[r] = at < count ? ids[min(at + r, count - 1)] : 0;
    return rows;
  };
  const auto fetch = [&](int at, Listed rows, int slot) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows.ids[r] = rows.ids[r] >= 0 && rows.ids[r] < n ? rows.ids[r] : 0;
    if (at < count) Weights(ring + slot * kStageBytes).copy_rows(w, n, rows);
    copies_group();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) fetch(mine + s * each, listed(mine + s * each), s);
  Listed next = listed(mine + kStages * each);  // a turn ahead of their copies
  Packed<T>::template fill<1>(table);
  dependency_wait();
  dependency_launch();
  const int row0 = blockIdx.y * M, rows = min(*live - row0, M);
  if (rows <= 0) return copies_wait();
  stage_even<M, kSegs, kLength>(a, q + static_cast<size_t>(row0) * kValues, d + static_cast<size_t>(row0) * kBlocks,
                                sums + static_cast<size_t>(row0) * 2 * kBlocks, rows);
  __syncthreads();
#pragma unroll 1
  for (int at = mine, slot = 0; at < count; at += each) {
    const int own = at + lane_id() % kRows, id = own < count ? ids[own] : -1;
    if (own < count && (id < 0 || id >= n)) report(faults, kFaultRange);
    copies_wait_for_groups<kStages - 1>();
    __syncwarp();
    uint8_t* stage = ring + slot * kStageBytes;
    float part[M];
    StagedChain<T, M, kSegs, kLength>(stage).chain(table, a, part);
    add_segments<M, kSegs>(part, reinterpret_cast<float*>(stage), [&](int, int m, float total) {  // of row lane_id() % kRows
      if (m < rows && id >= 0 && id < n) y[static_cast<size_t>(row0 + m) * n + id] = total;
    });
    __syncwarp();
    fetch(at + kStages * each, next, slot);
    next = listed(at + (kStages + 1) * each);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  copies_wait();
}
