// Routed experts of a prompt chunk: a thread block takes 64 weight rows of an expert and some of its pairs, weights decoded on the
// way. An expert's planes are found through a table of addresses. Tiles by f16 tensor cores (wide.cuh), or with STRATA_INT8 by those for
// int8 (gemm.cuh).
//
// Macros: STRATA_TYPE (of all planes of the launch), and of f16 tiles STRATA_PLANE (how it is decoded), STRATA_TOKEN_GROUPS,
// STRATA_PARTS, STRATA_DEPTH, STRATA_STAGES, STRATA_HELD; of int8 tiles STRATA_BLOCKS (of a row), STRATA_TOKEN_WARPS, STRATA_TILES,
// STRATA_STAGE.
// Grid: (tiles of 64 rows, tiles of pairs); tiles [0]: how many, then expert, first pair in order of experts, pairs of each.
#ifndef STRATA_INT8
#define STRATA_INT8 0
#endif

#include "op.cuh"
#include "step.cuh"
#if STRATA_INT8
#include "gemm.cuh"
#else
#include "packed_signed.cuh"
#include "wide.cuh"
#endif

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
#if STRATA_INT8
using Tile = Gemm<T, STRATA_BLOCKS, 2, STRATA_TOKEN_WARPS, STRATA_TILES, true, STRATA_STAGE, true>;
constexpr int kTableBytes = 0, kListBytes = (8 * Tile::kTokens + 127) / 128 * 128;
using Row = int8_t;  // of the rows' first plane
#else
using Plane = STRATA_PLANE;
using Tile = Wide<WideFormatOf<T>, 1, STRATA_TOKEN_GROUPS, STRATA_PARTS, STRATA_DEPTH, STRATA_STAGES, STRATA_HELD>;
constexpr int kTableBytes = 4 * Plane::kTableWords, kListBytes = 8 * Tile::kTokens;
using Row = TokenImage;
#endif

struct Pairs {
  int expert, first, count;
};
__device__ __forceinline__ Pairs pairs_of_tile(const int* tiles) {
  const int i = blockIdx.y;
  if (i >= tiles[0]) return {0, 0, 0};
  return {tiles[3 * i + 1], tiles[3 * i + 2], tiles[3 * i + 3]};
}

// A launch's shared memory: the grid's table, pairs and their token rows, the tile.
struct Shared {
  uint32_t* table;
  int *pair, *token;
  uint8_t* tile;
  __device__ __forceinline__ Shared(uint8_t* at)
      : table(reinterpret_cast<uint32_t*>(at)), pair(reinterpret_cast<int*>(at + kTableBytes)), token(pair + Tile::kTokens),
        tile(at + kTableBytes + kListBytes) {}

  __device__ __forceinline__ void fill() const {
#if !STRATA_INT8
    Plane::template fill<1>(table);
#endif
  }
  __device__ __forceinline__ void list(const int* pairs, const Pairs& mine, int divisor) const {
    for (int i = threadIdx.x; i < Tile::kTokens; i += Tile::kThreads) {
      pair[i] = pairs[mine.first + min(i, mine.count - 1)];
      token[i] = pair[i] / divisor;
    }
    __syncthreads();
  }
};

// q8 rows; of f16 tiles only the first, images.
struct Inputs {
  const Row* x;
  const float* d;
  const int16_t* sums;
};

// Products of a tile, whose rows find(r) names: put(row, token, four), row and row + 8 (z, w) at token and token + 1. The stages' memory
// is free then.
template <class Find, class Put>
__device__ __forceinline__ void products(const Shared& s, int n, int k, const Pairs& mine, const Inputs& in, Find find, Put put) {
#if STRATA_INT8
  Tile::run(s.tile, n, find, {in.x, in.d, in.sums}, [&](int i) { return s.token[i]; }, put);
#else
  Tile tile(s.tile);
  const int blocks = k / kBlock;
  DecodedRows<Tile, T, Plane, Find> rows(s.table, n, blocks, find);
  GatheredTokens<Tile, WideFormatOf<T>> from(in.x, image_count(blocks), s.token, mine.count);
  const int active = max(0, min(STRATA_PARTS, (mine.count - tile.group_token() + 63) / 64));
  if (active == STRATA_PARTS) {
    tile.template run<STRATA_PARTS>(rows, from, blocks);
  } else if (STRATA_PARTS == 2 && active == 1) {
    tile.template run<1>(rows, from, blocks);
  } else {
    tile.template run<0>(rows, from, blocks);
  }
  __syncthreads();  // nobody reads the last stage any more
  tile.results(active, put);
#endif
}

// Where a tile's stages lie, and their bytes.
#if STRATA_INT8
__device__ __forceinline__ float* stages(const Shared& s) { return reinterpret_cast<float*>(s.tile); }
constexpr int kStagesBytes = Tile::kSharedBytes;
#else
__device__ __forceinline__ float* stages(const Shared& s) { return reinterpret_cast<float*>(Tile(s.tile).base); }
constexpr int kStagesBytes = STRATA_STAGES * Tile::kStageBytes;
#endif

}  // namespace

extern "C" {

// out[p] = silu(gate x[p / top]) * (up x[p / top]), q8 [pairs, n], or float where out_d is null. 32 features a tile: rows g and g + 8 of
// 16 are the gate and the up of one feature, so that a thread has both.
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    wide_gate_up(const int* tiles, const int* pairs, const Row* x, const float* x_d, const int16_t* x_sums, const uint64_t* gate,
                 const uint64_t* up, const float* gate_scale, const float* up_scale, void* out, float* out_d, int16_t* out_sums, int k, int n,
                 int top, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  s.fill();
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, top);
  const uint8_t *gates = reinterpret_cast<const uint8_t*>(gate[mine.expert]), *ups = reinterpret_cast<const uint8_t*>(up[mine.expert]);
  const int first = blockIdx.x * 32;
  const float g = gate_scale ? gate_scale[mine.expert] : 1.0f, u = up_scale ? up_scale[mine.expert] : 1.0f;
  constexpr int pitch = 33;
  static_assert(Tile::kTokens * pitch * 4 <= kStagesBytes);
  float* values = stages(s);  // [tokens of the tile][features]
  products(
      s, n, k, mine, {x, x_d, x_sums}, [=](int r) { return PackedRow{r % 16 < 8 ? gates : ups, min(first + r / 16 * 8 + r % 8, n - 1)}; },
      [&](int row, int token, const float4& v) {
        float* at = values + token * pitch + row / 16 * 8 + row % 8;
        at[0] = silu32(v.x * g) * (v.z * u), at[pitch] = silu32(v.y * g) * (v.w * u);
      });
  __syncthreads();
  bool finite = true;
  for (int i = warp_id(); i < mine.count; i += Tile::kThreads / 32) {
    const float value = values[i * pitch + lane_id()];
    const size_t to = static_cast<size_t>(s.pair[i]) * n + first;
    if (out_d == nullptr) {
      if (first + lane_id() < n) static_cast<float*>(out)[to + lane_id()] = value;
    } else {
      finite &= finite32(value);
      quantize_block(value, static_cast<int8_t*>(out) + to, out_d + to / 32, out_sums + to / 16);
    }
  }
  if (!finite) report(faults, kFaultNonFinite);
}

// out[p] = down x[p], float [pairs, n].
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    wide_down(const int* tiles, const int* pairs, const Row* x, const float* x_d, const int16_t* x_sums, const uint64_t* down,
              const float* down_scale, float* out, int k, int n) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  s.fill();
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, 1);
  const uint8_t* planes = reinterpret_cast<const uint8_t*>(down[mine.expert]);
  const int first = blockIdx.x * 64;
  const float scale = down_scale ? down_scale[mine.expert] : 1.0f;
  const auto put = [&](int row, int token, const float4& v) {
    const bool low = first + row < n, high = first + row + 8 < n;
    if (token < mine.count) {
      float* at = out + static_cast<size_t>(s.pair[token]) * n + first + row;
      if (low) at[0] = v.x * scale;
      if (high) at[8] = v.z * scale;
    }
    if (token + 1 < mine.count) {
      float* at = out + static_cast<size_t>(s.pair[token + 1]) * n + first + row;
      if (low) at[0] = v.y * scale;
      if (high) at[8] = v.w * scale;
    }
  };
  products(s, n, k, mine, {x, x_d, x_sums}, [=](int r) { return PackedRow{planes, min(first + r, n - 1)}; }, put);
}

}  // extern "C"

extern "C" { extern __device__ const int wide_experts_shared = kTableBytes + kListBytes + Tile::kSharedBytes; }
