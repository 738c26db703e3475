// IQ3_XXS with the signs in the table: 4,096 words in shared memory, entry e with the sign pattern s at e + 256 s. Half the instructions a
// block of Packed<IQ3_XXS>, for 16 KB instead of 1: for kernels that fill the table while they wait.
#pragma once

#include "packed.cuh"

namespace strata {

struct SignedIq3Xxs : Packed<QuantType::IQ3_XXS> {
  static constexpr int kTableWords = 4096;

  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
    for (int i = threadIdx.x; i < kTableWords; i += blockDim.x) table[i] = negate_bytes(kGridIq3Xxs[i & 255], i >> 8);
  }
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
    const uint32_t parity = parity7(r.signs);
    uint32_t signs = 0;  // byte l: the signs of words 2 l and 2 l + 1, a nibble each
#pragma unroll
    for (int l = 0; l < 4; ++l) signs |= (r.signs << l & 0x7fu << 8 * l) | (parity << (l + 7) & 0x80u << 8 * l);
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

// How the experts' gate and up are decoded.
template <QuantType T> struct ExpertPlane {
  using type = Packed<T>;
};
template <> struct ExpertPlane<QuantType::IQ3_XXS> {
  using type = SignedIq3Xxs;
};

}  // namespace strata
