// From a file's blocks to the planes of packed.cuh, one file block at a time, while a weight is loaded.
#pragma once

#include "packed.cuh"

namespace strata {

// Bytes of a file block in each of up to 4 planes, and the copy of one block into them.
template <QuantType T> struct Pack;

// Values [0, 32) of nibbles as 16 bytes: byte j holds values j and j + 16.
__device__ __forceinline__ void put_nibbles(const uint8_t* values, uint8_t* to) {
  for (int j = 0; j < 16; ++j) to[j] = static_cast<uint8_t>(values[j] | values[j + 16] << 4);
}

// Values [0, 32) of two bits as 8 bytes: byte j of word h holds values 16 h + j, j + 4, j + 8, j + 12.
__device__ __forceinline__ void put_pairs(const uint8_t* values, uint8_t* to) {
  for (int j = 0; j < 8; ++j) {
    const uint8_t* v = values + 16 * (j / 4) + j % 4;
    to[j] = static_cast<uint8_t>(v[0] | v[4] << 2 | v[8] << 4 | v[12] << 6);
  }
}

// Values [0, 32) of two bits as 8 bytes: byte j holds values j, j + 8, j + 16, j + 24.
__device__ __forceinline__ void put_quarters(const uint8_t* values, uint8_t* to) {
  for (int j = 0; j < 8; ++j)
    to[j] = static_cast<uint8_t>(values[j] | values[j + 8] << 2 | values[j + 16] << 4 | values[j + 24] << 6);
}

__device__ __forceinline__ void put_bytes(const uint8_t* from, int n, uint8_t* to) {
  for (int j = 0; j < n; ++j) to[j] = from[j];
}

template <> struct Pack<QuantType::IQ3_XXS> {
  static constexpr int plane[4] = {64, 32, 2, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    put_bytes(p + 2, 64, to[0]), put_bytes(p + 66, 32, to[1]), put_bytes(p, 2, to[2]);
  }
};

template <> struct Pack<QuantType::Q2_0> {
  static constexpr int plane[4] = {16, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int i = 0; i < 2; ++i) {
      uint8_t v[32];
      for (int j = 0; j < 32; ++j) v[j] = p[2 + 8 * i + j / 4] >> 2 * (j % 4) & 3;
      put_pairs(v, to[0] + 8 * i);
    }
    put_bytes(p, 2, to[1]);
  }
};

template <> struct Pack<QuantType::Q6_K> {
  static constexpr int plane[4] = {128, 64, 16, 2};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) {
      const int part = b / 4, r = b % 4;
      uint8_t low[32], high[32];
      for (int j = 0; j < 32; ++j) {
        low[j] = p[64 * part + 32 * (r % 2) + j] >> 4 * (r / 2) & 15;
        high[j] = p[128 + 32 * part + j] >> 2 * r & 3;
      }
      put_nibbles(low, to[0] + 16 * b);
      put_quarters(high, to[1] + 8 * b);
    }
    put_bytes(p + 192, 16, to[2]), put_bytes(p + 208, 2, to[3]);
  }
};

template <> struct Pack<QuantType::Q4_K> {
  static constexpr int plane[4] = {128, 12, 4, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) {
      uint8_t v[32];
      for (int j = 0; j < 32; ++j) v[j] = p[16 + 32 * (b / 2) + j] >> 4 * (b % 2) & 15;
      put_nibbles(v, to[0] + 16 * b);
    }
    put_bytes(p + 4, 12, to[1]), put_bytes(p, 4, to[2]);
  }
};

template <> struct Pack<QuantType::IQ2_S> {
  static constexpr int plane[4] = {64, 16, 2, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) {
      put_bytes(p + 2 + 4 * b, 4, to[0] + 8 * b), put_bytes(p + 34 + 4 * b, 4, to[0] + 8 * b + 4);
      to[1][2 * b] = p[66 + b], to[1][2 * b + 1] = p[74 + b];
    }
    put_bytes(p, 2, to[2]);
  }
};

template <> struct Pack<QuantType::NVFP4> {
  static constexpr int plane[4] = {32, 4, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int g = 0; g < 4; ++g) {  // 16 values in order, two a byte; the file has value j and j + 8 in a byte
      const uint8_t* q = p + 4 + 8 * g;
      for (int j = 0; j < 4; ++j) {
        to[0][8 * g + j] = static_cast<uint8_t>((q[2 * j] & 15) | (q[2 * j + 1] & 15) << 4);
        to[0][8 * g + 4 + j] = static_cast<uint8_t>(q[2 * j] >> 4 | (q[2 * j + 1] >> 4) << 4);
      }
    }
    put_bytes(p, 4, to[1]);
  }
};

}  // namespace strata

#include "pack_more.cuh"
