// The first node of a replay: the snapshot of step inputs that the host wrote for it, from page-locked memory.
#include "op.cuh"

using namespace strata;

// ring [depth][stride] and device in 16-byte words, `words` of them used; turn: u64 replays so far, then u32 thread blocks
// that are done; consumed: the same count for the host.
extern "C" __global__ void copy_inputs(const uint4* ring, uint4* device, uint64_t* turn, volatile uint64_t* consumed,
                                       int stride, int words, int depth) {
  dependency_wait();
  const uint64_t now = *turn;
  const uint4* from = ring + static_cast<size_t>(now % static_cast<uint64_t>(depth)) * stride;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) device[i] = from[i];
  dependency_launch();
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t* done = reinterpret_cast<uint32_t*>(turn + 1);
  __threadfence();
  if (atomicAdd(done, 1u) != gridDim.x - 1) return;
  *done = 0;
  *turn = now + 1;
  *consumed = now + 1;
}
