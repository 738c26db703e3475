// count_tokens: output tokens into the plane of penalty counts (ops/count_tokens.py). One thread a token; the same place may come
// twice, and sums of integers have no order.
#include "op.cuh"

using namespace strata;

extern "C" __global__ void count_tokens(const int* live, const int* slots, const int* tokens, int* counts, uint32_t* faults, int rows,
                                        int num_slots, int vocab) {
  dependency_launch();
  dependency_wait();
  const int n = *live, i = threadIdx.x;
  if (n < 0 || n > rows) {
    if (i == 0) report(faults, kFaultRange);
    return;
  }
  if (i >= n) return;
  const int slot = slots[i], token = tokens[i];
  if (slot < 0 || slot >= num_slots || token < 0 || token >= vocab) {
    report(faults, kFaultRange);
    return;
  }
  atomicAdd(counts + static_cast<size_t>(slot) * vocab + token, 2);
}
