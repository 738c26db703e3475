// publish: a step's sampled tokens into the results ring (ops/publish.py), which the host polls. The step number is written
// last, so that a reader who sees it sees the rest. What was reported until now marks the slot: later steps may have begun when it is read.
#include "op.cuh"

using namespace strata;

constexpr int kFaulty = 1 << 30, kFaultWords = 8;  // ops/publish.py; words that kernels report, tiers included

extern "C" __global__ void publish(const int* live, const int* step, const int* ids, const float* logprobs, int* ring, uint32_t* faults,
                                   int depth, int width) {
  dependency_launch();
  dependency_wait();
  const int rows = (width - 2) / 2, n = *live, number = *step;
  const bool faulty = __syncthreads_or(threadIdx.x < kFaultWords && static_cast<volatile uint32_t*>(faults)[threadIdx.x] != 0);
  int* slot = ring + number % depth * width;
  if (n < 0 || n > rows || number < 0) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  if (static_cast<int>(threadIdx.x) < n) {
    slot[2 + threadIdx.x] = ids[threadIdx.x];
    slot[2 + rows + threadIdx.x] = static_cast<int>(float_bits(logprobs[threadIdx.x]));
  }
  if (threadIdx.x == 0) slot[1] = faulty ? n | kFaulty : n;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) store_release_system(reinterpret_cast<uint32_t*>(slot), static_cast<uint32_t>(number));
}
