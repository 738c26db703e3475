// embed: out[r] = the float values of row tokens[r] of a table [vocab, width] of STRATA_TYPE, as the file stores it. A thread
// 32 values (float types: one).
#include "op.cuh"
#include "strata/quants.h"

using namespace strata;

template <QuantType T> __device__ __forceinline__ void values_of(const uint8_t* row, int i, float* out) {
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

extern "C" __global__ void embed(const int* live, const int* tokens, const uint8_t* table, float* out, uint32_t* faults, int width,
                                 int vocab) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int each = Layout<T>::quantised ? 32 : 1;
  dependency_launch();
  dependency_wait();
  const int parts = width / each, n = *live * parts;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int r = i / parts, token = tokens[r];
    if (token < 0 || token >= vocab) {
      report(faults, kFaultRange);
      continue;
    }
    const size_t row_bytes = static_cast<size_t>(width / Layout<T>::values) * Layout<T>::bytes;
    values_of<T>(table + token * row_bytes, i % parts, out + static_cast<size_t>(r) * width);
  }
}
