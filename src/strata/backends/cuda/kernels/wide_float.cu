// wide_float: y[token][output] for f16 weights and float rows, which are taken as sums of two f16, on tensor cores. Sums of 256 values are
// taken by the tensor cores and added in float: a row's result depends on K alone.
//
// A thread block has 64 tokens and tiles of outputs one after another. Two warpgroups multiply, each half of a tile's outputs; one splits
// rows and one copies weights to a ring of stages of 64 values, as in wide.cuh.
//
// Outputs are an even number.
// Macros: STRATA_WEIGHT_TERMS (2: weights are sums of two as well; their low parts times low parts are left out), STRATA_OUTPUTS (of a
// warpgroup), STRATA_STAGES. Grid: groups of `each` tiles of outputs x tiles of tokens, tokens first.
// scales: what a row is multiplied by before it is split (row_power.cuh), and its results divided by; output_scales (null: 1): what an output's
// results are multiplied by. All are powers of two.
#include "op.cuh"
#include "ring.cuh"

using namespace strata;

namespace {

constexpr int Terms = STRATA_WEIGHT_TERMS, N = STRATA_OUTPUTS, Count = STRATA_STAGES;
constexpr int kConsumers = 256, kProducers = 128, kThreads = kConsumers + 2 * kProducers, kTokens = 64, kOutputs = 2 * N;
constexpr int kLine = 128;  // bytes of 64 values
constexpr int kPlaneBytes = kTokens * kLine, kStageBytes = 2 * kPlaneBytes + Terms * kOutputs * kLine;
constexpr int kProducerRegisters = 72, kConsumerRegisters = 184;

// Lines of 64 values of weights from value 64 * i on, parts of 16 bytes at part ^ line % 8; zeros beyond k. Lines beyond `lines` stay as they
// are: nobody asks for what they give.
__device__ __forceinline__ void copy_lines(uint8_t* to, const uint16_t* from, int first, int lines, int i, int pitch, int k, int producer) {
  constexpr int kStep = kProducers / 8;
  const int part = producer % 8, line = producer / 8, at = 64 * i + 8 * part;
  uint8_t* target = to + line * kLine + (part ^ line % 8) * 16;
  if (at >= k) {
#pragma unroll 4
    for (int u = 0; u < kOutputs; u += kStep) *reinterpret_cast<uint4*>(target + u * kLine) = make_uint4(0, 0, 0, 0);
    return;
  }
  const uint16_t* source = from + static_cast<int64_t>(first + line) * pitch + at;
  const int there = lines - first - line;
#pragma unroll
  for (int u = 0; u < kOutputs; u += kStep, source += kStep * pitch, add_up(source))
    if (u < there) copy_async<16>(target + u * kLine, source);
}

// Rows of a stage on their way: each thread has four neighbouring values of eight rows.
struct FloatRows {
  static constexpr int kEarly = 4;
  const float *first, *x;  // of the rows; this thread's first value
  float scale[8];
  int k, tokens, there;  // of the eight rows
  float4 value[8];

  __device__ __forceinline__ FloatRows(const float* rows, const float* scales, int tokens_, int k_, int producer)
      : first(rows), x(rows + static_cast<int64_t>(producer / 16) * k_ + producer % 16 * 4), k(k_), tokens(tokens_),
        there((tokens_ - producer / 16 + 7) / 8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) scale[j] = j < there ? scales[producer / 16 + 8 * j] : 0.0f;
  }
  __device__ __forceinline__ void fetch(int i, int producer) {
    const bool inside = 64 * i + producer % 16 * 4 < k;
    const float* from = x + 64 * i;
    // What is read kEarly stages later comes to the cache: a line a thread.
    const int early = 64 * (i + kEarly) + producer % 2 * 32;
    if (early < k && producer / 2 < tokens) fetch_line(reinterpret_cast<const uint8_t*>(first + static_cast<int64_t>(producer / 2) * k + early));
#pragma unroll
    for (int j = 0; j < 8; ++j, from += 8 * k, add_up(from)) {
      value[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (inside && j < there) value[j] = *reinterpret_cast<const float4*>(from);
    }
  }
  __device__ __forceinline__ void put(uint8_t* high, int producer) const {
    const int part = producer % 16, row = producer / 16;
    uint8_t* to = high + row * kLine + ((part / 2 ^ row % 8) * 16 + part % 2 * 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v[4] = {value[j].x * scale[j], value[j].y * scale[j], value[j].z * scale[j], value[j].w * scale[j]};
      uint32_t h[2], l[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        h[e] = pack_f16(v[2 * e], v[2 * e + 1]);
        l[e] = pack_f16(v[2 * e] - half_float(static_cast<uint16_t>(h[e])), v[2 * e + 1] - half_float(static_cast<uint16_t>(h[e] >> 16)));
      }
      *reinterpret_cast<uint2*>(to + 8 * j * kLine) = make_uint2(h[0], h[1]);
      *reinterpret_cast<uint2*>(to + 8 * j * kLine + kPlaneBytes) = make_uint2(l[0], l[1]);
    }
  }
};

// What a thread block computes: tiles of outputs from `tile0` on, of 64 tokens from `token0` on, of which `tokens` are there.
struct Work {
  int token0, tokens, tile0, tiles, stages;
};

using Stages = Ring<Count, kStageBytes>;

__device__ __forceinline__ void bring_rows(const Stages& ring, const Work& work, const float* x, const float* scales, int k, int producer) {
  FloatRows rows(x + static_cast<int64_t>(work.token0) * k, scales + work.token0, work.tokens, k, producer);
  rows.fetch(0, producer);
  Stages::At at;
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile)
#pragma unroll 1
    for (int i = 0; i < work.stages; ++i) {
      ring.wait_empty(at);
      rows.put(ring.stage(at), producer);
      ring.fill(at);
      rows.fetch(i + 1 < work.stages ? i + 1 : 0, producer);
      at.next();
    }
}

__device__ __forceinline__ void bring_weights(const Stages& ring, const Work& work, const uint16_t* high, const uint16_t* low, int n, int pitch, int k,
                                              int producer) {
  Stages::At at, before;  // the stage whose copies are on their way
  bool pending = false;
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile)
#pragma unroll 1
    for (int i = 0; i < work.stages; ++i) {
      ring.wait_empty(at);
      uint8_t* to = ring.stage(at) + 2 * kPlaneBytes;
      const int first = (work.tile0 + tile) * kOutputs;
      copy_lines(to, high, first, n, i, pitch, k, producer);
      if constexpr (Terms == 2) copy_lines(to + kOutputs * kLine, low, first, n, i, pitch, k, producer);
      copies_group();
      if (pending) copies_wait_for_groups<1>(), ring.fill(before);
      pending = true, before = at;
      at.next();
    }
  copies_wait_for_groups<0>(), ring.fill(before);
}

// Sums of a tile: total[4 j + e] is token 16 warp + g + 8 (e / 2) at output 8 j + 2 t + e % 2 of this warpgroup.
__device__ __forceinline__ void multiply(const Stages& ring, Stages::At& at, int stages, float (&total)[N / 2]) {
  float c[N / 2];
#pragma unroll
  for (int e = 0; e < N / 2; ++e) c[e] = total[e] = 0.0f;
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    ring.wait_full(at);
    const SharedLines a = SharedLines::from(ring.stage(at)), b = SharedLines::from(ring.stage(at) + 2 * kPlaneBytes + warp_id() / 4 * N * kLine);
    products_fence();
#pragma unroll
    for (int slice = 0; slice < 4; ++slice) {
      tile_product<N>(c, a, b, slice, slice > 0 || i % 4 > 0);
      tile_product<N>(c, a.at(kPlaneBytes), b, slice, true);
      if constexpr (Terms == 2) tile_product<N>(c, a, b.at(kOutputs * kLine), slice, true);
    }
    products_commit();
    products_wait<0>(c);
    ring.release(at);
    at.next();
    if (i % 4 == 3 || i + 1 == stages) {
#pragma unroll
      for (int e = 0; e < N / 2; ++e) total[e] += c[e];
    }
  }
}

__device__ __forceinline__ void store(const Work& work, int tile, const float (&total)[N / 2], const float* scales, const float* output_scales,
                                      float* y, int n) {
  const int lane = lane_id(), token = warp_id() % 4 * 16 + lane / 4, output = (work.tile0 + tile) * kOutputs + warp_id() / 4 * N + 2 * (lane % 4);
  float back[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) back[h] = div32(1.0f, scales[work.token0 + min(token + 8 * h, work.tokens - 1)]);
  float2 scale[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    scale[j] = make_float2(1.0f, 1.0f);
    if (output_scales) scale[j] = *reinterpret_cast<const float2*>(output_scales + min(output + 8 * j, n - 2));
  }
  float* to = y + static_cast<int64_t>(work.token0 + token) * n + output;
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (output + 8 * j < n && token + 8 * h < work.tokens) {
        const float* v = total + 4 * j + 2 * h;
        *reinterpret_cast<float2*>(to + static_cast<int64_t>(8 * h) * n + 8 * j) =
            make_float2(v[0] * back[h] * scale[j].x, v[1] * back[h] * scale[j].y);
      }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    wide_float(const int* live, const uint16_t* high, const uint16_t* low, const float* x, const float* scales, const float* output_scales,
               float* y, int n, int tiles_of_tokens, int k, int pitch, int each) {
  STRATA_DYNAMIC_SHARED(shared);
  const Stages ring(shared, 2 * kProducers, kConsumers);
  __syncthreads();
  dependency_wait();
  dependency_launch();
  const int token0 = static_cast<int>(blockIdx.x) % tiles_of_tokens * kTokens, tile0 = static_cast<int>(blockIdx.x) / tiles_of_tokens * each;
  const Work work{token0, min(*live - token0, kTokens), tile0, min(each, (n + kOutputs - 1) / kOutputs - tile0), (k + 63) / 64};
  if (work.tokens <= 0) return;
  if (threadIdx.x >= kConsumers) {
    registers_shrink<kProducerRegisters>();
    const int producer = static_cast<int>(threadIdx.x) % kProducers;
    if (threadIdx.x < kConsumers + kProducers) {
      bring_rows(ring, work, x, scales, k, producer);
    } else {
      bring_weights(ring, work, high, low, n, pitch, k, producer);
    }
    return;
  }
  registers_grow<kConsumerRegisters>();
  Stages::At at;
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile) {
    float total[N / 2];
    multiply(ring, at, work.stages, total);
    store(work, tile, total, scales, output_scales, y, n);
  }
}
extern "C" { extern __device__ const int wide_float_shared = Stages::kSharedBytes; }
