// Several products of the same few rows, as products.cu, by thread blocks that stay: each warp runs through its rows of weights, the next
// of which are always on their way through a ring in shared memory, so that loading and computing overlap and nothing is begun twice.
// A block of weights is decoded once for all rows. Macros: STRATA_ROWS (all of the step's), STRATA_EACH (rows that each live one stands for; left out: 1), STRATA_TYPE0 .. 2, STRATA_KIND0 .. 5 (see products.cu), STRATA_SEGMENTS, STRATA_LENGTH (blocks of every segment), STRATA_THREADS,
// STRATA_STAGES, STRATA_STAGE_BYTES (of the ring), STRATA_BLOCKS (thread blocks a multiprocessor is meant to hold), STRATA_FLOAT_ROOM
// (bytes of a float row; 0: no float matrix), STRATA_TABLE_WORDS (of a grid).
//
// An item is what a warp does at a time: a row of a float matrix, or the rows of a quantised one whose segments are a warp's lanes. Float
// matrices come first; a float row takes the whole ring and the place of kFloatTurns items. Items of matrix i end at end<i>.
#include "op.cuh"
#include "row_chain.cuh"
#include "staged_weights.cuh"

using namespace strata;

#ifndef STRATA_EACH
#define STRATA_EACH 1
#endif

namespace {

constexpr int M = STRATA_ROWS, kSegs = STRATA_SEGMENTS, kLength = STRATA_LENGTH, kBlocks = kSegs * kLength, kValues = 32 * kBlocks;
constexpr int kThreads = STRATA_THREADS, kWarps = kThreads / 32, kStages = STRATA_STAGES, kStageBytes = STRATA_STAGE_BYTES;
constexpr int kRows = 32 / kSegs, kFloatRoom = STRATA_FLOAT_ROOM, kRing = kStages * kStageBytes;
constexpr int kFloatTurns = kFloatRoom == 0 ? 0 : (kFloatRoom + kStageBytes - 1) / kStageBytes;
static_assert(kFloatRoom <= kRing, "a float row fits the ring");
static_assert(4 * 32 * M <= kStageBytes, "an item's segments fit where its weights were");
constexpr int kStagedFloats = kFloatRoom > 0 && M == 1 ? kValues : 0;  // a float row beside the weights; several are read from the cache

struct Item {
  const uint8_t* w;
  float* y;
  int n, index, kind;
};

// Copies an item's bytes to `to`, as far as T is its type.
template <QuantType T> __device__ __forceinline__ void copy_item(const Item& item, uint8_t* to) {
  if constexpr (Layout<T>::quantised) {
    StagedWeights<T, kSegs, kLength>(to).copy(item.w, item.n, item.index * kRows);
  } else {
    constexpr int row = kValues * Layout<T>::bytes;
    const uint8_t* from = item.w + static_cast<size_t>(item.index) * row;
    for (int i = lane_id(); i < row / 16; i += 32) copy_async<16>(to + 16 * i, from + 16 * i);
  }
}

// Where an item's results go: row m's at m * n.
struct Results {
  float* y;
  int n, rows;  // rows that live
  __device__ __forceinline__ void put(int at, int m, float total) const {
    if (m < rows) y[static_cast<size_t>(m) * n + at] = total;
  }
};

// An item's results, if T is a type of its kind. Its weights at `at` are used up. x: M float rows.
template <QuantType T, bool Float>
__device__ __forceinline__ void compute_item(const Item& item, const Results& to, uint8_t* at, const uint32_t* table, const StagedRows& a,
                                             const float* x) {
  if constexpr (Layout<T>::quantised && !Float) {
    float part[M];
    StagedChain<T, M, kSegs, kLength>(at).chain(table, a, part);
    add_segments<M, kSegs>(part, reinterpret_cast<float*>(at), [&](int r, int m, float total) { to.put(item.index * kRows + r, m, total); });
  } else if constexpr (!Layout<T>::quantised && Float && M == 1) {
    const float total = lane_dot<T>(at, x, kValues);
    if (lane_id() == 0) to.put(item.index, 0, total);
  } else if constexpr (!Layout<T>::quantised && Float) {
    float sum[M];
    lane_dots<T, M>(at, x, kValues, to.rows, kValues, sum);
#pragma unroll
    for (int m = 0; m < M; ++m)
      if (lane_id() == 0) to.put(item.index, m, sum[m]);
  }
}

}  // namespace

#define STRATA_MATRIX(i) const uint8_t *w##i, float *y##i, int n##i, int end##i
#define STRATA_CHOOSE(i, before) \
  if (at >= before && at < end##i) item = {w##i, y##i, n##i, at - before, STRATA_KIND##i};
#define STRATA_EACH_TYPE(f) f(0, STRATA_TYPE0)
#ifdef STRATA_TYPE1
#undef STRATA_EACH_TYPE
#define STRATA_EACH_TYPE(f) f(0, STRATA_TYPE0) f(1, STRATA_TYPE1)
#endif
#ifdef STRATA_TYPE2
#undef STRATA_EACH_TYPE
#define STRATA_EACH_TYPE(f) f(0, STRATA_TYPE0) f(1, STRATA_TYPE1) f(2, STRATA_TYPE2)
#endif

extern "C" __global__ void __launch_bounds__(kThreads, STRATA_BLOCKS)
    products_stream(const int* live, const int8_t* q, const float* d, const int16_t* sums, const float* x, STRATA_MATRIX(0), STRATA_MATRIX(1),
                    STRATA_MATRIX(2), STRATA_MATRIX(3), STRATA_MATRIX(4), STRATA_MATRIX(5), int floats) {
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  const StagedRows a = staged_rows<M, kSegs>(shared + 4 * STRATA_TABLE_WORDS, kValues);
  float* staged_x = reinterpret_cast<float*>(a.sums + M * kBlocks);  // on a border of 16: float matrices need even kBlocks
  constexpr int kBefore = 4 * STRATA_TABLE_WORDS + M * (kValues + 4 * kSegmentPad * kSegs + 8 * kBlocks) + 4 * kStagedFloats;
  uint8_t* ring = shared + (kBefore + 15) / 16 * 16 + warp_id() * kRing;
  const int warps = gridDim.x * kWarps, mine = warp_id() * gridDim.x + blockIdx.x;
  const bool holds_float = kFloatRoom > 0 && mine < floats;  // as its first item

  // The item of turn r; kind -1: none.
  const auto item_of = [&](int r) {
    int at = r * warps + mine;
    if (r >= kFloatTurns)
      at -= kFloatTurns == 0 ? 0 : (kFloatTurns - 1) * floats;
    else if (!holds_float)
      at -= r * floats;
    Item item{nullptr, nullptr, 0, 0, -1};
    STRATA_CHOOSE(0, 0)
    STRATA_CHOOSE(1, end0)
    STRATA_CHOOSE(2, end1)
    STRATA_CHOOSE(3, end2)
    STRATA_CHOOSE(4, end3)
    STRATA_CHOOSE(5, end4)
    return item;
  };
  const auto fetch = [&](int r, int slot) {
    const Item item = item_of(r);
#define STRATA_COPY(i, T) \
  if (item.kind == i) copy_item<T>(item, ring + slot * kStageBytes);
    STRATA_EACH_TYPE(STRATA_COPY)
    copies_group();
  };
  trace(0);
  if (holds_float) {
    fetch(0, 0);
  } else {
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) fetch(s, s);
  }
#define STRATA_FILL(i, T) Packed<T>::template fill<1>(table);
  STRATA_EACH_TYPE(STRATA_FILL)
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  const int rows = *live * STRATA_EACH;
  stage_even<M, kSegs, kLength>(a, q, d, sums, M);  // which does not wait for the number of rows
  if constexpr (kStagedFloats > 0) {
    for (int i = threadIdx.x; i < kValues / 4; i += kThreads) reinterpret_cast<float4*>(staged_x)[i] = reinterpret_cast<const float4*>(x)[i];
    x = staged_x;
  }
  if (rows <= 0) return copies_wait();
  __syncthreads();
  trace(3);
  int turn = 0;
  if (holds_float) {
    const Item item = item_of(0);
    copies_wait();
    __syncwarp();
#define STRATA_FLOAT(i, T) \
  if (item.kind == i) compute_item<T, true>(item, {item.y, item.n, rows}, ring, table, a, x);
    STRATA_EACH_TYPE(STRATA_FLOAT)
    __syncwarp();
    turn = kFloatTurns;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) fetch(turn + s, s);
  }
#pragma unroll 1
  for (int slot = 0;; ++turn) {
    const Item item = item_of(turn);
    if (item.kind < 0) break;
    copies_wait_for_groups<kStages - 1>();
    __syncwarp();
    trace(turn < 4 ? 4 + turn : 8);
#define STRATA_COMPUTE(i, T) \
  if (item.kind == i) compute_item<T, false>(item, {item.y, item.n, rows}, ring + slot * kStageBytes, table, a, x);
    STRATA_EACH_TYPE(STRATA_COMPUTE)
    __syncwarp();
    fetch(turn + kStages, slot);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  copies_wait();
  trace(9);
}
