// Images of wide_steps.cuh: expand_weights from a packed matrix, widen_rows from q8 rows.
// Macros: STRATA_TYPE (for expand_weights), STRATA_PAIRS (1: sums of both halves instead of d_a times their sum).
#include "op.cuh"
#include "wide_steps.cuh"

#ifndef STRATA_PAIRS
#define STRATA_PAIRS 0
#endif

using namespace strata;

extern "C" {

#ifdef STRATA_TYPE
// A thread a 32-block of rows [first, first + 64 * slabs); blocks beyond k and rows beyond n are zero. Neighbours are the two blocks of a
// row, then rows of an image. Grid: 64 * slabs * padded blocks / threads.
__global__ void __launch_bounds__(256) expand_weights(const uint8_t* packed, RowImage<WideFormatOf<STRATA_TYPE>>* images, int n, int first,
                                                      int slabs, int k) {
  constexpr QuantType T = STRATA_TYPE;
  using P = Packed<T>;
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  P::template fill<1>(table);
  __syncthreads();
  const int blocks = k / kBlock, along = image_count(blocks);
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, image = unit / (2 * kSlab);
  const int in = static_cast<int>(unit % (2 * kSlab)), row = in / 2, half = in % 2;
  const int slab = static_cast<int>(image / along), b = static_cast<int>(image % along) * 2 + half, from = first + slab * kSlab + row;
  dependency_wait();
  dependency_launch();
  if (slab >= slabs) return;
  uint32_t code[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) code[i] = 0x80808080u;
  Scales scale = {};
  if (from < n && b < blocks) {
    const typename P::Raw raw = P::load(packed, n, blocks, from, b);
    P::template decode<1>(raw, table, code);
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = biased<T, P>(code[i]);
    scale = P::scales(raw);
  }
  auto& to = images[image];
  uint4* codes = reinterpret_cast<uint4*>(to.codes + code_offset(row, half));
  codes[0] = make_uint4(code[0], code[1], code[2], code[3]), codes[1] = make_uint4(code[4], code[5], code[6], code[7]);
  put_scales<T>(to, row, half, scale);
}
#endif

// A thread 16 values of a token; tokens from *live on are zero. Grid: 64 * slabs * padded blocks * 2 / threads.
__global__ void __launch_bounds__(256) widen_rows(const int* live, const int8_t* q, const float* d, const int16_t* sums, TokenImage* images,
                                                  int slabs, int k) {
  const int blocks = k / kBlock, along = image_count(blocks);
  const int unit = blockIdx.x * blockDim.x + threadIdx.x, image = unit / (4 * kSlab), in = unit % (4 * kSlab);
  const int row = in / 4, half = in % 2, pass = in / 2 % 2;
  const int slab = image / along, b = image % along * 2 + pass, token = slab * kSlab + row;
  dependency_wait();
  dependency_launch();
  if (slab >= slabs) return;
  const bool there = token < *live && b < blocks;
  const int64_t block = static_cast<int64_t>(token) * blocks + b;
  // Slots 16 half + 8 e + 2 t + i of a block hold values 8 t + 4 half + 2 e + i: thread t of a quad has values 8 t .. 8 t + 7 of the weights.
  uint32_t word[8] = {};
  float d_a = 0.0f;
  int2 halves = {};  // sums of codes
  if (there) {
    if (half == 0) d_a = d[block], halves = {sums[2 * block], sums[2 * block + 1]};  // before the stores, which they would wait for
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
  TokenImage& to = images[image];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int part = (4 * pass + 2 * half + e) ^ row % 8;
    *reinterpret_cast<uint4*>(to.x + row * 128 + part * 16) = make_uint4(word[4 * e], word[4 * e + 1], word[4 * e + 2], word[4 * e + 3]);
  }
  if (half == 0) {
    const int at = four_order(row);
    to.d[pass][at] = d_a;
    to.sum[pass][at] = STRATA_PAIRS ? static_cast<uint32_t>(halves.x & 0xffff) | static_cast<uint32_t>(halves.y) << 16
                                    : float_bits(static_cast<float>(halves.x + halves.y) * d_a);
  }
}

}  // extern "C"
