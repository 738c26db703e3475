// IQ3_XXS with the signs in the table: 4,096 words in shared memory, entry e with the sign pattern s at e + 256 s. Half the instructions a
// block of Packed<IQ3_XXS>, for 16 KB instead of 1: for kernels that fill the table while they wait.
#pragma once

#include "packed.cuh"

namespace strata {

// Four fields of seven signs, a byte each; the eighth makes their number even.
__device__ __forceinline__ uint32_t byte_signs(uint32_t s) {
  const uint32_t signs = (s & 0x7fu) | (s << 1 & 0x7f00u) | (s << 2 & 0x7f0000u) | (s << 3 & 0x7f000000u);
  uint32_t odd = signs ^ signs >> 4;
  odd ^= odd >> 2, odd ^= odd >> 1;
  return signs | (odd & 0x01010101u) << 7;
}

struct SignedIq3Xxs : Packed<QuantType::IQ3_XXS> {
  static constexpr int kTableWords = 4096;

  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
    for (int i = threadIdx.x; i < kTableWords; i += blockDim.x) table[i] = negate_bytes(kGridIq3Xxs[i & 255], i >> 8);
  }
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
    const uint32_t signs = byte_signs(r.signs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t index = i < 4 ? r.index.x : r.index.y;
      const int byte = 8 * (i & 3) - 2, nibble = 4 * i - 10;  // shifts to bits 2 .. 9 and 10 .. 13 of the offset in bytes
      const uint32_t low = (byte < 0 ? index << -byte : index >> byte) & 0x3fcu;
      const uint32_t high = (nibble < 0 ? signs << -nibble : signs >> nibble) & 0x3c00u;
      code[i] = *reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(table) + (low | high));
    }
  }
};

}  // namespace strata
