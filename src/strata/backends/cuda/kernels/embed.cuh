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
    Block32 block;
    Format<T>::block32(row + static_cast<size_t>(i / per) * Layout<T>::bytes, i % per, block);
    for (int h = 0; h < 2; ++h) {
      const float scale = block.d[h] * static_cast<float>(block.scale[h]);
      const float min = block.dmin * static_cast<float>(block.min[h]);
      for (int j = 16 * h; j < 16 * h + 16; ++j) {
        out[32 * i + j] = scale * static_cast<float>(block.code[j]);
        if constexpr (Layout<T>::has_min) out[32 * i + j] += min;
      }
    }
  }
}

}  // namespace strata
