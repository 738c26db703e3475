// Planes of wide.cuh: expand_weights from a packed matrix, widen_rows from q8 rows.
// Macros: STRATA_TYPE (for expand_weights), STRATA_PAIRS (1: sums of both halves instead of d_a times their sum).
#include "op.cuh"
#include "wide_steps.cuh"

#ifndef STRATA_PAIRS
#define STRATA_PAIRS 0
#endif

using namespace strata;

extern "C" {

#ifdef STRATA_TYPE
// A thread a 32-block of rows [first, first + rows); blocks beyond k and rows beyond n are zero. Grid: rows (padded) * padded blocks / threads.
__global__ void __launch_bounds__(256) expand_weights(const uint8_t* packed, uint8_t* codes, float* w, uint32_t* s, float* m, uint32_t* mins,
                                                      int n, int first, int rows, int k) {
  constexpr QuantType T = STRATA_TYPE;
  using F = WideFormatOf<T>;
  using P = Packed<T>;
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  P::template fill<1>(table);
  __syncthreads();
  const int blocks = k / kBlock, padded = (blocks + 1) / 2 * 2;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(unit / padded), b = static_cast<int>(unit % padded);
  dependency_wait();
  dependency_launch();
  if (row >= rows) return;
  uint32_t code[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) code[i] = 0x80808080u;
  Scales scale = {};
  if (first + row < n && b < blocks) {
    const typename P::Raw raw = P::load(packed, n, blocks, first + row, b);
    P::template decode<1>(raw, table, code);
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = biased<T, P>(code[i]);
    scale = P::scales(raw);
  }
  uint4* to = reinterpret_cast<uint4*>(codes + (static_cast<int64_t>(row) * padded + b) * 32);
  to[0] = make_uint4(code[0], code[1], code[2], code[3]), to[1] = make_uint4(code[4], code[5], code[6], code[7]);
  const int64_t at = static_cast<int64_t>(b) * rows + pair_order(row);
  if constexpr (F::kSub == 2) {
    w[at + static_cast<int64_t>(b) * rows] = scale.w0, w[at + static_cast<int64_t>(b + 1) * rows] = scale.w1;
  } else {
    w[at] = scale.w0;
  }
  if constexpr (F::kHalves) s[at] = two_halves(scale.s0, scale.s1);
  if constexpr (F::kMin > 0) m[at] = scale.m;
  if constexpr (F::kMin == 2) mins[at] = two_halves(scale.m0, scale.m1);
}
#endif

// A thread 16 values of a token; tokens from *live on are zero. Grid: tokens (padded) * padded blocks * 2 / threads.
__global__ void __launch_bounds__(256) widen_rows(const int* live, const int8_t* q, const float* d, const int16_t* sums, uint16_t* x,
                                                  float* scales, uint32_t* sum, int tokens, int k) {
  const int blocks = k / kBlock, padded = (blocks + 1) / 2 * 2;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int half = static_cast<int>(unit % 2), b = static_cast<int>(unit / 2 % padded), token = static_cast<int>(unit / 2 / padded);
  dependency_wait();
  dependency_launch();
  if (token >= tokens) return;
  const bool there = token < *live && b < blocks;
  const int64_t block = static_cast<int64_t>(token) * blocks + b;
  // Slots 16 half + 8 e + 2 t + i hold values 8 t + 4 half + 2 e + i: a thread t of a quad has values 8 t .. 8 t + 7 of the weights.
  uint32_t word[8] = {};
  if (there) {
    const uint4* from = reinterpret_cast<const uint4*>(q + block * 32);
    const uint4 low = from[0], high = from[1];
    const uint32_t code[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t four = (half ? code[2 * t + 1] : code[2 * t]) ^ 0x80808080u;
      word[t] = add_halves(__byte_perm(four, 0x64646464u, 0x4140), 0xe480e480u);
      word[4 + t] = add_halves(__byte_perm(four, 0x64646464u, 0x4342), 0xe480e480u);
    }
  }
  uint4* to = reinterpret_cast<uint4*>(x + (static_cast<int64_t>(token) * padded + b) * 32 + half * 16);
  to[0] = make_uint4(word[0], word[1], word[2], word[3]), to[1] = make_uint4(word[4], word[5], word[6], word[7]);
  if (half == 0) {
    const int64_t at = static_cast<int64_t>(b) * tokens + four_order(token);
    const float d_a = there ? d[block] : 0.0f;
    const int low = there ? sums[2 * block] : 0, high = there ? sums[2 * block + 1] : 0;
    scales[at] = d_a;
    sum[at] = STRATA_PAIRS ? static_cast<uint32_t>(low & 0xffff) | static_cast<uint32_t>(high) << 16 : float_bits(static_cast<float>(low + high) * d_a);
  }
}

}  // extern "C"
