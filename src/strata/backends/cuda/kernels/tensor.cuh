// Products of halves on tensor cores. Where float32 values are meant, each is two halves, hi and lo, and a product is
// hi hi + hi lo + lo hi, right to 2^-21 of values from 2^-3 to 2^15; `power_below` makes a power of two that brings others there.
#pragma once

#include "device.cuh"

namespace strata {

// Two neighbouring values as parts.
struct Pair {
  uint32_t hi, lo;
};
__device__ __forceinline__ Pair f16_parts(float x, float y) {
  const uint32_t hi = pack_f16(x, y);
  return {hi, pack_f16(x - half_float(static_cast<uint16_t>(hi)), y - half_float(static_cast<uint16_t>(hi >> 16)))};
}

// The power of two that brings a value of size `most` to at least 2^(top - 1) and below 2^top; of tiny ones 2^60 times that.
__device__ __forceinline__ float power_below(float most, int top) {
  return bits_float(static_cast<uint32_t>(253 + top - max(static_cast<int>(float_bits(most) >> 23 & 255u), 67)) << 23);
}
// 1 / x of a power of two.
__device__ __forceinline__ float power_inverse(float x) { return bits_float(0x7f000000u - float_bits(x)); }

// A matrix in shared memory; rows begin at multiples of 16 bytes, and eight neighbouring rows in different banks where the stride is
// an odd multiple of 16 bytes. `apart`: values from hi to lo.
struct Matrix {
  uint16_t* at;
  int stride, apart;

  __device__ __forceinline__ void put(int row, int column, const Pair& x) const {
    uint32_t* to = reinterpret_cast<uint32_t*>(at + row * stride + column);
    to[0] = x.hi;
    *reinterpret_cast<uint32_t*>(at + apart + row * stride + column) = x.lo;
  }
};

// What a lane holds of a 16 x 16 tile from (row, k) on of a matrix [row][k], or, turned, of [k][row]: the left side of a product.
template <bool Turned> __device__ __forceinline__ void load_left(uint32_t (&a)[4], const uint16_t* at, int stride, int row, int k) {
  const int l = lane_id();
  if constexpr (Turned) {
    load_matrices_turned(a, at + (k + l % 8 + l / 16 * 8) * stride + row + l / 8 % 2 * 8);
  } else {
    load_matrices(a, at + (row + l % 16) * stride + k + l / 16 * 8);
  }
}

// The left side as parts from floats in memory, whose first row of 16 begins at `at`.
__device__ __forceinline__ void load_left_parts(uint32_t (&hi)[4], uint32_t (&lo)[4], const float* at, size_t stride, int k, float times = 1.0f) {
  at += static_cast<size_t>(lane_id() / 4) * stride + k + lane_id() % 4 * 2;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 x = *reinterpret_cast<const float2*>(at + e % 2 * 8 * stride + e / 2 * 8);
    const Pair pair = f16_parts(times * x.x, times * x.y);
    hi[e] = pair.hi, lo[e] = pair.lo;
  }
}

// The right side, of 16 columns from a matrix [column][k] or, turned, [k][column]: words 0, 1 of the first eight columns.
template <bool Turned> __device__ __forceinline__ void load_right(uint32_t (&b)[4], const uint16_t* at, int stride, int column, int k) {
  const int l = lane_id();
  if constexpr (Turned) {
    load_matrices_turned(b, at + (k + l % 8 + l / 8 % 2 * 8) * stride + column + l / 16 * 8);
  } else {
    load_matrices(b, at + (column + l % 8 + l / 16 * 8) * stride + k + l / 8 % 2 * 8);
  }
}

// acc += the three products of parts for 16 columns, tiles n and n + 1.
template <int N>
__device__ __forceinline__ void add_parts(float (&acc)[N][4], int n, const uint32_t (&hi)[4], const uint32_t (&lo)[4],
                                          const uint32_t (&b_hi)[4], const uint32_t (&b_lo)[4]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    mma_f16(acc[n + e], lo, b_hi[2 * e], b_hi[2 * e + 1]);
    mma_f16(acc[n + e], hi, b_lo[2 * e], b_lo[2 * e + 1]);
    mma_f16(acc[n + e], hi, b_hi[2 * e], b_hi[2 * e + 1]);
  }
}

// acc[n] += rows `row` .. + 15 of a times columns 8 n .. of b from `column` on, `steps` times 16 deep; tiles from `tiles` on are left
// out. TurnedB: b is [k][column].
template <bool TurnedA, bool TurnedB, int N>
__device__ __forceinline__ void add_product(float (&acc)[N][4], const Matrix& a, int row, const Matrix& b, int column, int steps,
                                            int tiles = N) {
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    uint32_t hi[4], lo[4];
    load_left<TurnedA>(hi, a.at, a.stride, row, 16 * s);
    load_left<TurnedA>(lo, a.at + a.apart, a.stride, row, 16 * s);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      if (n >= tiles) break;
      uint32_t b_hi[4], b_lo[4];
      load_right<TurnedB>(b_hi, b.at, b.stride, column + 8 * n, 16 * s);
      load_right<TurnedB>(b_lo, b.at + b.apart, b.stride, column + 8 * n, 16 * s);
      add_parts(acc, n, hi, lo, b_hi, b_lo);
    }
  }
}

// Calls f(row, column, x, y) for the pairs of neighbours that a lane holds of a product's tile n.
template <class F> __device__ __forceinline__ void each_pair(const float (&d)[4], int n, F f) {
  const int row = lane_id() / 4, column = 8 * n + lane_id() % 4 * 2;
  f(row, column, d[0], d[1]);
  f(row + 8, column, d[2], d[3]);
}

}  // namespace strata
