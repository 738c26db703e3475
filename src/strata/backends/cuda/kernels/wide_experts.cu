// Routed experts of a prompt chunk by f16 tensor cores (wide.cuh): a thread block takes some tiles of an expert's rows and up to 128 of its
// pairs, weights decoded on the way. An expert's planes are found through a table of addresses.
//
// Macros: STRATA_TYPE (of all planes of the launch), STRATA_PLANE (how it is decoded), STRATA_STAGES.
// Grid: (groups of `each` tiles of 128 rows, tiles of pairs, as expert_pairs.cuh has them).
#include "op.cuh"
#include "step.cuh"
#include "expert_pairs.cuh"
#include "packed_signed.cuh"
#include "wide.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
using Plane = STRATA_PLANE;
using Format = WideFormatOf<T>;
using Tile = Wide<Format, STRATA_STAGES, 1, true>;
constexpr int kTableBytes = (4 * Plane::kTableWords + 127) / 128 * 128;

// Of one consumer: 32 features of 128 tokens, an odd pitch.
constexpr int kPitch = 37, kValues = Tile::kTokens * kPitch;

// One thread quantises the 32 values at x; `to` on a border of 16 bytes. Whether all are finite.
__device__ __forceinline__ bool quantize_row_block(const float* x, int8_t* to, float* d, int16_t* sums) {
  float amax = 0.0f;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 32; ++i) amax = fmaxf(amax, fabsf(x[i])), finite &= finite32(x[i]);
  const float inverse = block_inverse(amax);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t word[4] = {};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int code = block_code(x[16 * half + i], inverse);
      sum += code, word[i / 4] |= static_cast<uint32_t>(code & 255) << i % 4 * 8;
    }
    reinterpret_cast<uint4*>(to)[half] = make_uint4(word[0], word[1], word[2], word[3]);
    sums[half] = static_cast<int16_t>(sum);
  }
  *d = block_scale(amax);
  return finite;
}

// The tile's stages, filled and multiplied: find(unit, r) is the packed row r of tile `unit` of rows, put(unit, total) has its sums.
template <class Find, class Put>
__device__ __forceinline__ void products(const uint32_t* table, const Tile& tile, const int* pairs, const Pairs& mine, const TokenImage* x, int n, int k,
                                         int divisor, int units, Find find, Put put) {
  const int blocks = k / kBlock, quarters = (mine.count + Tile::kQuarter - 1) / Tile::kQuarter;
  if (Tile::produces()) {
    registers_shrink<Tile::kProducerRegisters>();
    const GatheredTokens<Format> tokens(x, image_count(blocks), Tile::producer(), quarters,
                                        [&](int i) { return pairs[mine.first + min(i, mine.count - 1)] / divisor; });
    DecodedRows<T, Plane, Find> rows(table, n, blocks, Tile::producer(), find);
    tile.fill(rows, tokens, units, blocks);
    return;
  }
  registers_grow<Tile::kConsumerRegisters>();
  if (quarters == 4) {
    tile.template consume<4>(units, blocks, put);
  } else if (quarters == 3) {
    tile.template consume<3>(units, blocks, put);
  } else if (quarters == 2) {
    tile.template consume<2>(units, blocks, put);
  } else {
    tile.template consume<1>(units, blocks, put);
  }
}

}  // namespace

extern "C" {

// out[p] = silu(gate x[p / top]) * (up x[p / top]), q8 [pairs, n], or float where out_d is null. 64 features a tile of rows, 32 a consumer: rows
// g and g + 8 of 16 are the gate and the up of one feature, so that a thread has both.
__global__ void __launch_bounds__(Tile::kThreads, 1)
    wide_gate_up(const int* tiles, const int* pairs, const TokenImage* x, const uint64_t* gate, const uint64_t* up, const float* gate_scale,
                 const float* up_scale, void* out, float* out_d, int16_t* out_sums, int k, int n, int top, int each, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  Barrier* written = reinterpret_cast<Barrier*>(shared + kTableBytes);  // one a consumer
  Plane::template fill<1>(table);
  if (threadIdx.x < 2) written[threadIdx.x].init(128);
  const Tile tile(shared + kTableBytes + 128);
  __syncthreads();
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  const uint8_t *gates = reinterpret_cast<const uint8_t*>(gate[mine.expert]), *ups = reinterpret_cast<const uint8_t*>(up[mine.expert]);
  const int first = static_cast<int>(blockIdx.x) * each * 64, units = min(each, (n - first + 63) / 64);
  const float g = gate_scale ? gate_scale[mine.expert] : 1.0f, u = up_scale ? up_scale[mine.expert] : 1.0f;
  const int group = Tile::row_group() % 2, token = static_cast<int>(threadIdx.x) % 128;
  float* values = reinterpret_cast<float*>(tile.ring.base + STRATA_STAGES * Tile::kStageBytes) + group * kValues;
  uint32_t parity = 0;
  const auto meet = [&] {  // of a consumer's threads
    written[group].arrive();
    written[group].wait(parity);
    parity ^= 1;
  };
  products(
      table, tile, pairs, mine, x, n, k, top, units,
      [=](int unit, int r) {
        return PackedRow{r % 16 < 8 ? gates : ups, min(first + unit * 64 + r / 64 * 32 + r % 64 / 16 * 8 + r % 8, n - 1)};
      },
      [&](int unit, const auto& total) {
        meet();  // nobody reads the values of the unit before any more
        Tile::results(total, [&](int row, int at, const float4& v) {
          float* to = values + at * kPitch + row % 64 / 16 * 8 + row % 8;
          to[0] = silu32(v.x * g) * (v.z * u), to[kPitch] = silu32(v.y * g) * (v.w * u);
        });
        meet();
        const int feature = first + unit * 64 + group * 32;
        if (token >= mine.count || feature >= n) return;
        const float* value = values + token * kPitch;
        const size_t to = static_cast<size_t>(pairs[mine.first + token]) * n + feature;
        if (out_d != nullptr) {
          if (!quantize_row_block(value, static_cast<int8_t*>(out) + to, out_d + to / 32, out_sums + to / 16)) report(faults, kFaultNonFinite);
        } else {
          for (int i = 0; i < min(32, n - feature); ++i) static_cast<float*>(out)[to + i] = value[i];
        }
      });
}

// out[p] = down x[p], float [pairs, n].
__global__ void __launch_bounds__(Tile::kThreads, 1)
    wide_down(const int* tiles, const int* pairs, const TokenImage* x, const uint64_t* down, const float* down_scale, float* out, int k, int n, int each) {
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  Plane::template fill<1>(table);
  const Tile tile(shared + kTableBytes);
  __syncthreads();
  dependency_wait();
  dependency_launch();
  const Pairs mine = pairs_of_tile(tiles);
  if (mine.count == 0) return;
  const uint8_t* planes = reinterpret_cast<const uint8_t*>(down[mine.expert]);
  const int first = static_cast<int>(blockIdx.x) * each * Tile::kRows, units = min(each, (n - first + Tile::kRows - 1) / Tile::kRows);
  const float scale = down_scale ? down_scale[mine.expert] : 1.0f;
  products(
      table, tile, pairs, mine, x, n, k, 1, units,
      [=](int unit, int r) { return PackedRow{planes, min(first + unit * Tile::kRows + r, n - 1)}; },
      [&](int unit, const auto& total) {
        Tile::results(total, [&](int row, int token, const float4& v) {
          put_down(out, n, pairs + mine.first, mine.count, first + unit * Tile::kRows + row, token, v, scale);
        });
      });
}

}  // extern "C"

extern "C" { extern __device__ const int wide_experts_shared = kTableBytes + 128 + Tile::kSharedBytes + 2 * 4 * kValues; }
