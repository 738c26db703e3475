// Routed experts of a prompt chunk (wide.cuh): a thread block takes 64 weight rows of an expert and up to 64 * STRATA_PARTS *
// STRATA_TOKEN_GROUPS of its pairs, weights decoded on the way. An expert's planes are found through a table of addresses.
//
// Macros: STRATA_TYPE (of all planes of the launch), STRATA_PLANE (how it is decoded), STRATA_TOKEN_GROUPS, STRATA_PARTS, STRATA_DEPTH, STRATA_STAGES, STRATA_HELD.
// Grid: (tiles of 64 rows, tiles of pairs); tiles [0]: how many, then expert, first pair in order of experts, pairs of each.
#include "op.cuh"
#include "packed_signed.cuh"
#include "step.cuh"
#include "wide.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
using Plane = STRATA_PLANE;
using Tile = Wide<WideFormatOf<T>, 1, STRATA_TOKEN_GROUPS, STRATA_PARTS, STRATA_DEPTH, STRATA_STAGES, STRATA_HELD>;
constexpr int kTableBytes = 4 * Plane::kTableWords, kListBytes = 8 * Tile::kTokens;

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

  __device__ __forceinline__ void list(const int* pairs, const Pairs& mine, int divisor) const {
    for (int i = threadIdx.x; i < Tile::kTokens; i += Tile::kThreads) {
      pair[i] = pairs[mine.first + min(i, mine.count - 1)];
      token[i] = pair[i] / divisor;
    }
    __syncthreads();
  }
};

// The products of a tile; how many parts this thread's group has.
template <class Find>
__device__ __forceinline__ int products(Tile& tile, const Shared& s, int n, int k, const Pairs& mine, const TokenImage* tokens, Find find) {
  const int blocks = k / kBlock;
  DecodedRows<Tile, T, Plane, Find> rows(s.table, n, blocks, find);
  GatheredTokens<Tile, WideFormatOf<T>> from(tokens, image_count(blocks), s.token, mine.count);
  const int active = max(0, min(STRATA_PARTS, (mine.count - tile.group_token() + 63) / 64));
  if (active == STRATA_PARTS) {
    tile.template run<STRATA_PARTS>(rows, from, blocks);
  } else if (STRATA_PARTS == 2 && active == 1) {
    tile.template run<1>(rows, from, blocks);
  } else {
    tile.template run<0>(rows, from, blocks);
  }
  return active;
}

}  // namespace

extern "C" {

// out[p] = silu(gate x[p / top]) * (up x[p / top]), q8 [pairs, n], or float where out_d is null. 32 features a tile: rows g and g + 8 of
// 16 are the gate and the up of one feature, so that a thread has both.
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    wide_gate_up(const int* tiles, const int* pairs, const TokenImage* x, const uint64_t* gate, const uint64_t* up, const float* gate_scale, const float* up_scale, void* out, float* out_d, int16_t* out_sums, int k, int n,
                 int top, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  Plane::template fill<1>(s.table);
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, top);
  const uint8_t *gates = reinterpret_cast<const uint8_t*>(gate[mine.expert]), *ups = reinterpret_cast<const uint8_t*>(up[mine.expert]);
  const int first = blockIdx.x * 32;
  Tile tile(s.tile);
  const int active = products(tile, s, n, k, mine, x, [=](int r) {
    return PackedRow{r % 16 < 8 ? gates : ups, min(first + r / 16 * 8 + r % 8, n - 1)};
  });
  const float g = gate_scale ? gate_scale[mine.expert] : 1.0f, u = up_scale ? up_scale[mine.expert] : 1.0f;
  constexpr int pitch = 33;
  static_assert(Tile::kTokens * pitch * 4 <= STRATA_STAGES * Tile::kStageBytes);
  float* values = reinterpret_cast<float*>(tile.base);  // [tokens of the tile][features]
  __syncthreads();                                      // nobody reads the last stage any more
  tile.results(active, [&](int row, int token, const float4& v) {
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
    wide_down(const int* tiles, const int* pairs, const TokenImage* x, const uint64_t* down,
              const float* down_scale, float* out, int k, int n) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  Plane::template fill<1>(s.table);
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, 1);
  const uint8_t* planes = reinterpret_cast<const uint8_t*>(down[mine.expert]);
  const int first = blockIdx.x * 64;
  Tile tile(s.tile);
  const int active = products(tile, s, n, k, mine, x, [=](int r) { return PackedRow{planes, min(first + r, n - 1)}; });
  const float scale = down_scale ? down_scale[mine.expert] : 1.0f;
  tile.results(active, [&](int row, int token, const float4& v) {
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
  });
}

}  // extern "C"

extern "C" { extern __device__ const int wide_experts_shared = kTableBytes + kListBytes + Tile::kSharedBytes; }
