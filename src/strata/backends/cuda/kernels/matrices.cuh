// Which of up to three matrices of the same rows a thread block works on.
#pragma once

#include "op.cuh"

namespace strata {

struct BlockMatrix {
  const uint8_t* w;
  float* y;
  int n, block;  // weight rows; the thread block among the matrix's
};

// Thread blocks of `each` weight rows: those of matrix 0, of matrix 1, of matrix 2.
__device__ __forceinline__ BlockMatrix matrix_of_block(int each, const uint8_t* w0, float* y0, int n0, const uint8_t* w1, float* y1, int n1,
                                                       const uint8_t* w2, float* y2, int n2) {
  const int block = blockIdx.x, blocks0 = (n0 + each - 1) / each, blocks1 = (n1 + each - 1) / each;
  if (block >= blocks0 + blocks1) return {w2, y2, n2, block - blocks0 - blocks1};
  if (block >= blocks0) return {w1, y1, n1, block - blocks0};
  return {w0, y0, n0, block};
}

}  // namespace strata
