// The first node of a replay: the snapshot of step inputs that the host wrote for it, from page-locked memory.
#include "op.cuh"

using namespace strata;

constexpr uint32_t kSampled = 0x80000000u;

// A token as kernels read it: kSampled and what lies above it stand for another (backends/base.py).
__device__ __forceinline__ uint32_t token_of(uint32_t v, const uint32_t* sampled, const volatile int* drafts, int drafted) {
  if (v == kSampled) return *sampled;
  const uint32_t i = v - kSampled - 1u;
  return i < static_cast<uint32_t>(drafted) ? static_cast<uint32_t>(max(drafts[i], 0)) : v;
}

// ring [depth][stride] and device in 16-byte words, `words` of them used; turn: u64 replays so far, then u32 thread blocks
// that are done; consumed: the same count for the host. Of the 32-bit words [fed, fed_end), kSampled is replaced by the word of `ids` in the
// same place, and kSampled + 1 + i by drafts[i], of which there are `drafted`.
extern "C" __global__ void copy_inputs(const uint4* ring, uint4* device, uint64_t* turn, volatile uint64_t* consumed,
                                       const uint32_t* ids, int stride, int words, int depth, int fed, int fed_end, const volatile int* drafts,
                                       int drafted) {
  dependency_wait();
  const uint64_t now = *turn;
  const uint4* from = ring + static_cast<size_t>(now % static_cast<uint64_t>(depth)) * stride;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    uint4 v = from[i];
    if (4 * i >= fed && 4 * i < fed_end) {
      const uint32_t* id = ids + (4 * i - fed);
      const int left = fed_end - 4 * i;
      v.x = token_of(v.x, id, drafts, drafted);
      if (left > 1) v.y = token_of(v.y, id + 1, drafts, drafted);
      if (left > 2) v.z = token_of(v.z, id + 2, drafts, drafted);
      if (left > 3) v.w = token_of(v.w, id + 3, drafts, drafted);
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
