// Routed experts of a prompt chunk by int8 tensor cores (gemm.cuh): a thread block takes 64 weight rows of an expert and some of its pairs,
// weights decoded on the way. wide_experts.cu has the same kernels for f16 ones.
//
// Macros: STRATA_TYPE (of all planes of the launch), STRATA_BLOCKS (of a row), STRATA_TOKEN_WARPS, STRATA_TILES, STRATA_STAGE.
// Grid: (tiles of 64 rows, tiles of pairs, as expert_pairs.cuh has them).
#include "op.cuh"
#include "step.cuh"
#include "expert_pairs.cuh"
#include "gemm.cuh"

using namespace strata;

namespace {

using Tile = Gemm<STRATA_TYPE, STRATA_BLOCKS, 2, STRATA_TOKEN_WARPS, STRATA_TILES, true, STRATA_STAGE, true>;
constexpr int kListBytes = (8 * Tile::kTokens + 127) / 128 * 128;

// A launch's shared memory: pairs and their token rows, the tile.
struct Shared {
  int *pair, *token;
  uint8_t* tile;
  __device__ __forceinline__ Shared(uint8_t* at) : pair(reinterpret_cast<int*>(at)), token(pair + Tile::kTokens), tile(at + kListBytes) {}

  __device__ __forceinline__ void list(const int* pairs, const Pairs& mine, int divisor) const {
    for (int i = threadIdx.x; i < Tile::kTokens; i += Tile::kThreads) {
      pair[i] = pairs[mine.first + min(i, mine.count - 1)];
      token[i] = pair[i] / divisor;
    }
    __syncthreads();
  }
};

}  // namespace

extern "C" {

// out[p] = silu(gate x[p / top]) * (up x[p / top]), q8 [pairs, n], or float where out_d is null. 32 features a tile: rows g and g + 8 of
// 16 are the gate and the up of one feature, so that a thread has both.
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    int8_gate_up(const int* tiles, const int* pairs, const int8_t* x, const float* x_d, const int16_t* x_sums, const uint64_t* gate,
                 const uint64_t* up, const float* gate_scale, const float* up_scale, void* out, float* out_d, int16_t* out_sums, int k, int n,
                 int top, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, top);
  const uint8_t *gates = reinterpret_cast<const uint8_t*>(gate[mine.expert]), *ups = reinterpret_cast<const uint8_t*>(up[mine.expert]);
  const int first = blockIdx.x * 32;
  const float g = gate_scale ? gate_scale[mine.expert] : 1.0f, u = up_scale ? up_scale[mine.expert] : 1.0f;
  constexpr int pitch = 33;
  static_assert(Tile::kTokens * pitch * 4 <= Tile::kSharedBytes);
  float* values = reinterpret_cast<float*>(s.tile);  // [tokens of the tile][features]
  Tile::run(
      s.tile, n, [=](int r) { return PackedRow{r % 16 < 8 ? gates : ups, min(first + r / 16 * 8 + r % 8, n - 1)}; }, {x, x_d, x_sums},
      [&](int i) { return s.token[i]; },
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
    int8_down(const int* tiles, const int* pairs, const int8_t* x, const float* x_d, const int16_t* x_sums, const uint64_t* down,
              const float* down_scale, float* out, int k, int n) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared);
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  s.list(pairs, mine, 1);
  const uint8_t* planes = reinterpret_cast<const uint8_t*>(down[mine.expert]);
  const int first = blockIdx.x * 64;
  const float scale = down_scale ? down_scale[mine.expert] : 1.0f;
  Tile::run(
      s.tile, n, [=](int r) { return PackedRow{planes, min(first + r, n - 1)}; }, {x, x_d, x_sums}, [&](int i) { return s.token[i]; },
      [&](int row, int token, const float4& v) { put_down(out, n, s.pair, mine.count, first + row, token, v, scale); });
}

}  // extern "C"

extern "C" { extern __device__ const int int8_experts_shared = kListBytes + Tile::kSharedBytes; }
