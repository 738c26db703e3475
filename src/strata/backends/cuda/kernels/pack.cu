// Re-lays blocks of a matrix (STRATA_TYPE) while it is loaded: blocks [first, first + count) of `blocks`, which lie at
// `from`, into the planes at `to`. A thread a block.
#include "op.cuh"
#include "pack.cuh"

using namespace strata;

extern "C" __global__ void pack(const uint8_t* from, uint8_t* to, long long first, long long count, long long blocks) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  using P = Pack<STRATA_TYPE>;
  uint8_t* at[4];
  for (int p = 0; p < 4; ++p) {
    at[p] = to + (first + i) * P::plane[p];
    to += blocks * P::plane[p];
  }
  P::block(from + i * Layout<STRATA_TYPE>::bytes, at);
}
