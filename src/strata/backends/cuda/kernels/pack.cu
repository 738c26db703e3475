// Re-lays blocks of matrices (STRATA_TYPE) while they are loaded: blocks [first, first + count) of matrices of `blocks` each, which
// lie at `from`, into the planes of matrix m at to + m * stride. A thread a block.
#include "op.cuh"
#include "pack.cuh"

using namespace strata;

extern "C" __global__ void pack(const uint8_t* from, uint8_t* to, long long first, long long count, long long blocks,
                                long long stride) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  using P = Pack<STRATA_TYPE>;
  const long long matrix = (first + i) / blocks, block = (first + i) % blocks;
  uint8_t* plane = to + matrix * stride;
  uint8_t* at[4];
  for (int p = 0; p < 4; ++p) {
    at[p] = plane + block * P::plane[p];
    plane += blocks * P::plane[p];
  }
  P::block(from + i * Layout<STRATA_TYPE>::bytes, at);
}
