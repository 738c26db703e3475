// A thread's memory for the splits of one attention tile, or the scores of one row's blocks; grows to the longest
// context met.
#pragma once
#include <cstdlib>

#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

struct SplitBuffer {
  float* data = nullptr;
  int64_t size = 0;

  ~SplitBuffer() { free(data); }

  bool reserve(int64_t floats) {
    if (floats <= size) return true;
    free(data);
    data = static_cast<float*>(malloc(static_cast<size_t>(floats) * sizeof(float)));
    size = data ? floats : 0;
    return data != nullptr;
  }
};

}  // namespace strata::STRATA_LEVEL
