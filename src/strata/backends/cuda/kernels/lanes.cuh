// Lane dots by four threads ("quad"): thread j holds contract lanes 8 j .. 8 j + 7, so that it reads eight neighbouring
// values at a time, and the tree is taken across the quad. The bits are those of 32 lanes in a warp.
#pragma once

#include "device.cuh"
#include "strata/quants.h"

namespace strata {

// The two values of a 16-bit float type in a word.
template <QuantType T> __device__ __forceinline__ void word_floats(uint32_t word, float* v) {
  if constexpr (T == QuantType::BF16) {
    v[0] = bits_float(word << 16), v[1] = bits_float(word & 0xffff0000u);
  } else {
    v[0] = half_float(static_cast<uint16_t>(word)), v[1] = half_float(static_cast<uint16_t>(word >> 16));
  }
}

// Eight neighbouring values of a float type: 16 or 32 bytes, aligned to 16.
template <QuantType T> struct Eight {
  uint4 raw;
  __device__ __forceinline__ void load(const uint8_t* p) { raw = __ldg(reinterpret_cast<const uint4*>(p)); }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) word_floats<T>(word[i], v + 2 * i);
  }
};

template <> struct Eight<QuantType::F32> {
  float4 low, high;
  __device__ __forceinline__ void load(const uint8_t* p) {
    low = __ldg(reinterpret_cast<const float4*>(p)), high = __ldg(reinterpret_cast<const float4*>(p) + 1);
  }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  }
};

template <QuantType T> __device__ __forceinline__ float one_value(const uint8_t* p) {
  if constexpr (T == QuantType::F32) return *reinterpret_cast<const float*>(p);
  if constexpr (T == QuantType::F16) return half_float(*reinterpret_cast<const unsigned short*>(p));
  return bf16_float(*reinterpret_cast<const unsigned short*>(p));
}

// acc[e] = fma(v[e], x[e], acc[e]); x aligned to 16 bytes.
__device__ __forceinline__ void fma8(const float (&v)[8], const float* x, float (&acc)[8]) {
  const float4 low = *reinterpret_cast<const float4*>(x), high = *(reinterpret_cast<const float4*>(x) + 1);
  acc[0] = fma32(v[0], low.x, acc[0]), acc[1] = fma32(v[1], low.y, acc[1]);
  acc[2] = fma32(v[2], low.z, acc[2]), acc[3] = fma32(v[3], low.w, acc[3]);
  acc[4] = fma32(v[4], high.x, acc[4]), acc[5] = fma32(v[5], high.y, acc[5]);
  acc[6] = fma32(v[6], high.z, acc[6]), acc[7] = fma32(v[7], high.w, acc[7]);
}

// The tree over the quad's 32 lanes; every thread of the quad gets the sum. Sums of pairs commute, so that each step may
// leave half of its results to the partner: 9 exchanges.
__device__ __forceinline__ float quad_tree_sum(const float (&acc)[8]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  float a[4], b[2];
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // 16 apart: threads j and j + 2; the upper one keeps lanes 4 .. 7 of 8
    const float mine = upper ? acc[e + 4] : acc[e], other = upper ? acc[e] : acc[e + 4];
    a[e] = mine + __shfl_xor_sync(kFullWarp, other, 2);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {  // 8 apart: threads j and j + 1; the odd one keeps the upper two of four
    const float mine = odd ? a[e + 2] : a[e], other = odd ? a[e] : a[e + 2];
    b[e] = mine + __shfl_xor_sync(kFullWarp, other, 1);
  }
  const float mine = upper ? b[1] : b[0], other = upper ? b[0] : b[1];
  float c = mine + __shfl_xor_sync(kFullWarp, other, 2);  // 4 apart: lane e and e + 4, again threads j and j + 2
  c = c + __shfl_xor_sync(kFullWarp, c, 1);               // 2 apart
  return c + __shfl_xor_sync(kFullWarp, c, 2);            // 1 apart
}

// The tree over values of one thread: halves are added while there are two.
template <int N> __device__ __forceinline__ float array_tree_sum(const float (&x)[N]) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    float y[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) y[i] = x[i] + x[i + N / 2];
    return array_tree_sum(y);
  }
}

// Four neighbouring values of a float type: 8 or 16 bytes, aligned so.
template <QuantType T> struct Four {
  uint2 raw;
  __device__ __forceinline__ void load(const uint8_t* p) { raw = __ldg(reinterpret_cast<const uint2*>(p)); }
  __device__ __forceinline__ void floats(float (&v)[4]) const {
    const uint32_t word[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) word_floats<T>(word[i], v + 2 * i);
  }
};

template <> struct Four<QuantType::F32> {
  float4 raw;
  __device__ __forceinline__ void load(const uint8_t* p) { raw = __ldg(reinterpret_cast<const float4*>(p)); }
  __device__ __forceinline__ void floats(float (&v)[4]) const { v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w; }
};

__device__ __forceinline__ void fma4(const float (&v)[4], const float* x, float (&acc)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(x);
  acc[0] = fma32(v[0], four.x, acc[0]), acc[1] = fma32(v[1], four.y, acc[1]);
  acc[2] = fma32(v[2], four.z, acc[2]), acc[3] = fma32(v[3], four.w, acc[3]);
}

// The tree over 32 lanes that eight threads hold, thread j lanes 4 j .. 4 j + 3; every thread gets the sum in 6 exchanges.
__device__ __forceinline__ float octet_tree_sum(const float (&acc)[4]) {
  const bool upper = threadIdx.x & 4, middle = threadIdx.x & 2;
  float a[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {  // 16 apart: threads j and j + 4; the upper one keeps lanes 2 and 3 of four
    const float mine = upper ? acc[e + 2] : acc[e], other = upper ? acc[e] : acc[e + 2];
    a[e] = mine + __shfl_xor_sync(kFullWarp, other, 4);
  }
  const float mine = middle ? a[1] : a[0], other = middle ? a[0] : a[1];
  float b = mine + __shfl_xor_sync(kFullWarp, other, 2);  // 8 apart: threads j and j + 2
  b = b + __shfl_xor_sync(kFullWarp, b, 1);               // 4 apart: threads j and j + 1
  b = b + __shfl_xor_sync(kFullWarp, b, 4);               // 2 apart: lane e and e + 2
  return b + __shfl_xor_sync(kFullWarp, b, 2);            // 1 apart
}

}  // namespace strata
