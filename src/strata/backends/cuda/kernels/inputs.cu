// The first node of a replay: the snapshot of step inputs that the host wrote for it, from page-locked memory.
#include "op.cuh"

using namespace strata;

constexpr uint32_t kSampled = 0x80000000u;

// ring [depth][stride] and device in 16-byte words, `words` of them used; turn: u64 replays so far, then u32 thread blocks
// that are done; consumed: the same count for the host. Of the 32-bit words [fed, fed_end), kSampled (backends/base.py) is replaced
// by the word of `ids` in the same place.
extern "C" __global__ void copy_inputs(const uint4* ring, uint4* device, uint64_t* turn, volatile uint64_t* consumed,
                                       const uint32_t* ids, int stride, int words, int depth, int fed, int fed_end) {
  dependency_wait();
  const uint64_t now = *turn;
  const uint4* from = ring + static_cast<size_t>(now % static_cast<uint64_t>(depth)) * stride;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    uint4 v = from[i];
    if (4 * i >= fed && 4 * i < fed_end) {
      const uint32_t* id = ids + (4 * i - fed);
      const int left = fed_end - 4 * i;
      if (v.x == kSampled) v.x = id[0];
      if (left > 1 && v.y == kSampled) v.y = id[1];
      if (left > 2 && v.z == kSampled) v.z = id[2];
      if (left > 3 && v.w == kSampled) v.w = id[3];
    }
    device[i] = v;
  }
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
