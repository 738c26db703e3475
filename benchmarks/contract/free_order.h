// The AVX-512 product without the contract's order, for its price: partial sums of a block go to float accumulators as they
// come (sixteen a row), nothing is summed exactly or turned.
#pragma once

#include "packed_avx512.h"

namespace strata::simd {

template <QuantType T>
void rows16_free(const Rows<T>& format, const uint8_t* base, int n, int blocks, int row0, const Activation& a, float* y) {
  constexpr bool halves = Layout<T>::halves && !Layout<T>::scale16, scale16 = Layout<T>::scale16;
  const Planes w{base, static_cast<size_t>(n) * blocks};
  const __m512i dup = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  for (int r = 0; r < 16; ++r) {
    __m512 acc = _mm512_setzero_ps(), min = _mm512_setzero_ps();
    for (int c = 0; c < a.chunks; ++c) {
      const int count = blocks - kChunk * c < kChunk ? blocks - kChunk * c : kChunk;
      const size_t at = static_cast<size_t>(row0 + r) * blocks + kChunk * c;
      __m512i s = format.sums(w, at, count, a, c);
      if constexpr (halves) s = _mm512_mullo_epi32(s, format.sub_scales(w, at, count));
      __m512 scale;
      if constexpr (scale16) scale = format.scale16(w, at, count);
      else scale = _mm512_permutexvar_ps(dup, _mm512_castps256_ps512(format.scale(w, at, count)));
      acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale, floats16(a.scale2[c])), acc);
      if constexpr (Layout<T>::has_min)
        min = _mm512_fmadd_ps(_mm512_castps256_ps512(format.min(w, at)), _mm512_maskz_loadu_ps(0xff, a.sum_scaled[c]), min);
    }
    y[r] = _mm512_reduce_add_ps(_mm512_add_ps(acc, min));
  }
}

}  // namespace strata::simd
