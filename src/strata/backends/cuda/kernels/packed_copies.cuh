// IQ3_XXS for steps of few rows: its grid many times in shared memory, side by side, so that no more than 32 / Copies lanes meet in a bank.
// What the lookups do not know, signs, costs instructions; docs/cuda-rows.md has the count.
#pragma once

#include "packed.cuh"

namespace strata {

template <int Count> struct CopiedIq3Xxs : Packed<QuantType::IQ3_XXS> {
  static_assert(Count % 4 == 0 && 32 % Count == 0, "copies of a lane's bank each");
  static constexpr int kTableWords = 256 * Count;  // copy c of entry e at e * Count + c

  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
#pragma unroll 4
    for (int i = threadIdx.x; i < kTableWords / 4; i += blockDim.x) {
      const uint32_t entry = kGridIq3Xxs[4 * i / Count];
      reinterpret_cast<uint4*>(table)[i] = make_uint4(entry, entry, entry, entry);
    }
  }

  // Selectors of pick_bytes: nibble j is j, and 4 more where value j is negative. Of words 2 f in byte f of `even`, of words 2 f + 1 in
  // that of `odd`, not yet selectors: the two lower signs in the byte's lower nibble, the others and a 4 in its upper one.
  static __device__ __forceinline__ void spread(uint32_t signs, uint32_t& even, uint32_t& odd) {
    const uint32_t halves = (signs & 0x3fffu) + (signs & 0x0fffc000u) * 4u;
    const uint32_t seven = halves + (halves & 0x3f803f80u), three = seven >> 4;  // bits of a byte that count
    even = (seven & 0x0c0c0c0cu) * 3u + ((seven & 0x0f0f0f0fu) | 0x40404040u);
    odd = (three & 0x0c0c0c0cu) * 3u + ((three & 0x0f0f0f0fu) | 0x40404040u);
    const uint32_t pairs = even ^ odd, pair = pairs ^ pairs << 4;
    odd |= (pair ^ pair << 1) & 0x20202020u;  // the eighth sign makes their number even
  }

  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
    uint32_t even, odd;
    spread(r.signs, even, odd);
    const uint32_t copy = 4 * (lane_id() % Count);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // A product with one byte is that byte, shifted, and the lane's place added: one instruction.
      const uint32_t at = dot4_unsigned(i < 4 ? r.index.x : r.index.y, 4u * Count << 8 * (i & 3), copy);
      const uint32_t entry = *reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(table) + at);
      const uint32_t two = pick_bytes(0x54501410u, 0x76723632u, ((i & 1) ? odd : even) >> 16 * (i / 4));  // words i & 5 and 2 more
      code[i] = pick_bytes(entry, 0x01010100u - entry, (i & 2) ? two >> 16 : two);  // of 1 .. 127 each, so no byte borrows
    }
  }

  static __device__ __forceinline__ Scales scales(const Raw& r) {  // d / 4 times 2 s + 1, all of it exact
    return {half_float(static_cast<uint16_t>(r.d)) * fma32(static_cast<float>(r.signs >> 28), 0.5f, 0.25f), 0.0f, 0.0f, 1, 1};
  }
};

// How gate and up of a step's experts are decoded.
template <QuantType T, int Copies> struct ExpertPlane {
  using type = Packed<T>;
};
template <int Copies> struct ExpertPlane<QuantType::IQ3_XXS, Copies> {
  using type = CopiedIq3Xxs<Copies>;
};

}  // namespace strata
