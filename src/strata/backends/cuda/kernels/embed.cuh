// Values of rows of an embedding table, as the file stores it.
#pragma once

#include "op.cuh"
#include "strata/quants.h"

namespace strata {

// Values that a thread decodes at a time.
template <QuantType T> constexpr int kEmbedEach = Layout<T>::quantised ? 32 : 1;

// Part i of a row, to its place in `out`.
template <QuantType T> __device__ __forceinline__ void embedded(const uint8_t* row, int i, float* out) {
  if constexpr (!Layout<T>::quantised) {
    dequantize_block<T>(row + static_cast<size_t>(i) * Layout<T>::bytes, out + i);
  } else {
    constexpr int per = Layout<T>::values / 32;
    dequantize_32<T>(row + static_cast<size_t>(i / per) * Layout<T>::bytes, i % per, out + 32 * i);
  }
}

}  // namespace strata
