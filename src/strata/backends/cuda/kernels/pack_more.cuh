// Copies of file blocks into the planes of packed_more.cuh; pack.cuh includes this file.
#pragma once

namespace strata {

// Values [0, 32) of nibbles as 16 bytes: byte j holds values 2 j and 2 j + 1. `p`: 16 bytes of values j and j + 16.
__device__ __forceinline__ void put_nibbles_in_order(const uint8_t* p, uint8_t* to) {
  for (int j = 0; j < 8; ++j) {
    to[j] = static_cast<uint8_t>((p[2 * j] & 15) | (p[2 * j + 1] & 15) << 4);
    to[8 + j] = static_cast<uint8_t>(p[2 * j] >> 4 | (p[2 * j + 1] >> 4) << 4);
  }
}

// Bit `bit` of 32 bytes as one little-endian word.
__device__ __forceinline__ void put_bit_of_bytes(const uint8_t* p, int bit, uint8_t* to) {
  for (int j = 0; j < 4; ++j) {
    int byte = 0;
    for (int i = 0; i < 8; ++i) byte |= (p[8 * j + i] >> bit & 1) << i;
    to[j] = static_cast<uint8_t>(byte);
  }
}

// The two bits from `shift` on of 32 bytes, as put_pairs lays them.
__device__ __forceinline__ void put_field(const uint8_t* p, int shift, uint8_t* to) {
  uint8_t v[32];
  for (int j = 0; j < 32; ++j) v[j] = p[j] >> shift & 3;
  put_pairs(v, to);
}

template <> struct Pack<QuantType::Q8_0> {
  static constexpr int plane[4] = {32, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_bytes(p + 2, 32, to[0]), put_bytes(p, 2, to[1]); }
};

template <> struct Pack<QuantType::Q4_0> {
  static constexpr int plane[4] = {16, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_bytes(p + 2, 16, to[0]), put_bytes(p, 2, to[1]); }
};

template <> struct Pack<QuantType::Q4_1> {
  static constexpr int plane[4] = {16, 4, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_bytes(p + 4, 16, to[0]), put_bytes(p, 4, to[1]); }
};

template <> struct Pack<QuantType::Q5_0> {
  static constexpr int plane[4] = {16, 4, 2, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    put_bytes(p + 6, 16, to[0]), put_bytes(p + 2, 4, to[1]), put_bytes(p, 2, to[2]);
  }
};

template <> struct Pack<QuantType::Q5_1> {
  static constexpr int plane[4] = {16, 4, 4, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    put_bytes(p + 8, 16, to[0]), put_bytes(p + 4, 4, to[1]), put_bytes(p, 4, to[2]);
  }
};

template <> struct Pack<QuantType::Q5_K> {
  static constexpr int plane[4] = {128, 12, 4, 32};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) {
      uint8_t v[32];
      for (int j = 0; j < 32; ++j) v[j] = p[48 + 32 * (b / 2) + j] >> 4 * (b % 2) & 15;
      put_nibbles(v, to[0] + 16 * b);
      put_bit_of_bytes(p + 16, b, to[3] + 4 * b);
    }
    put_bytes(p + 4, 12, to[1]), put_bytes(p, 4, to[2]);
  }
};

template <> struct Pack<QuantType::Q2_K> {
  static constexpr int plane[4] = {64, 16, 4, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) put_field(p + 16 + b / 4 * 32, 2 * (b % 4), to[0] + 8 * b);
    put_bytes(p, 16, to[1]), put_bytes(p + 80, 4, to[2]);
  }
};

template <> struct Pack<QuantType::Q3_K> {
  static constexpr int plane[4] = {64, 32, 12, 2};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) {
      put_field(p + 32 + b / 4 * 32, 2 * (b % 4), to[0] + 8 * b);
      put_bit_of_bytes(p, b, to[1] + 4 * b);
    }
    put_bytes(p + 96, 12, to[2]), put_bytes(p + 108, 2, to[3]);
  }
};

template <> struct Pack<QuantType::TQ2_0> {
  static constexpr int plane[4] = {64, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) put_field(p + b / 4 * 32, 2 * (b % 4), to[0] + 8 * b);
    put_bytes(p + 64, 2, to[1]);
  }
};

template <> struct Pack<QuantType::IQ4_NL> {
  static constexpr int plane[4] = {16, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_nibbles_in_order(p + 2, to[0]), put_bytes(p, 2, to[1]); }
};

template <> struct Pack<QuantType::IQ4_XS> {
  static constexpr int plane[4] = {128, 4, 4, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    for (int b = 0; b < 8; ++b) put_nibbles_in_order(p + 8 + 16 * b, to[0] + 16 * b);
    put_bytes(p + 4, 4, to[1]), put_bytes(p + 2, 2, to[2]), put_bytes(p, 2, to[2] + 2);
  }
};

template <> struct Pack<QuantType::MXFP4> {
  static constexpr int plane[4] = {16, 1, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_nibbles_in_order(p + 1, to[0]), put_bytes(p, 1, to[1]); }
};

template <> struct Pack<QuantType::IQ2_XXS> {
  static constexpr int plane[4] = {64, 2, 0, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) { put_bytes(p + 2, 64, to[0]), put_bytes(p, 2, to[1]); }
};

template <> struct Pack<QuantType::IQ2_XS> {
  static constexpr int plane[4] = {64, 8, 2, 0};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    put_bytes(p + 2, 64, to[0]), put_bytes(p + 66, 8, to[1]), put_bytes(p, 2, to[2]);
  }
};

template <> struct Pack<QuantType::IQ3_S> {
  static constexpr int plane[4] = {64, 32, 8, 6};
  static __device__ void block(const uint8_t* p, uint8_t* const* to) {
    put_bytes(p + 2, 64, to[0]), put_bytes(p + 74, 32, to[1]), put_bytes(p + 66, 8, to[2]);
    put_bytes(p + 106, 4, to[3]), put_bytes(p, 2, to[3] + 4);
  }
};

}  // namespace strata
