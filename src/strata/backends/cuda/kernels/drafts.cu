// What a draft layer needs beside a trunk's ops: recent rows in a ring by position (ops/recent_rows.py), and drafts handed to
// the pass that follows and to the host (ops/pass_draft.py).
#include "op.cuh"

using namespace strata;

// The row's place in the ring; -1 where it lies outside.
__device__ __forceinline__ long long recent_place(const int* positions, const int* sequences, int r, int depth, int count) {
  const int position = positions[r], sequence = sequences[r];
  if (position < 0 || sequence < 0 || sequence >= count) return -1;
  return static_cast<long long>(sequence) * depth + position % depth;
}

extern "C" {

__global__ void keep_recent(const int* live, const int* positions, const int* sequences, const float* x, float* ring, uint32_t* faults,
                            int width, int depth, int count) {
  dependency_launch();
  dependency_wait();
  const int n = *live, first = max(n - depth, 0);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n - first) * width; i += gridDim.x * blockDim.x) {
    const int r = first + i / width;
    const long long at = recent_place(positions, sequences, r, depth, count);
    if (at < 0)
      report(faults, kFaultRange);
    else
      ring[at * width + i % width] = x[static_cast<size_t>(r) * width + i % width];
  }
}

__global__ void recall_recent(const int* live, const int* positions, const int* sequences, const float* ring, float* out, uint32_t* faults,
                              int width, int depth, int count) {
  dependency_launch();
  dependency_wait();
  const int n = *live;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * width; i += gridDim.x * blockDim.x) {
    const long long at = recent_place(positions, sequences, i / width, depth, count);
    if (at < 0)
      report(faults, kFaultRange);
    else
      out[i] = ring[at * width + i % width];
  }
}

// drafts [most][2][rows] is mapped memory of the host, which reads it after the replay.
__global__ void pass_draft(const int* live, const int* depth, const int* ids, const float* logprobs, int* tokens, int* drafts,
                           uint32_t* faults, int most, int rows) {
  dependency_launch();
  dependency_wait();
  const int n = *live, at = *depth;
  if (at < 0 || at >= most || n > rows) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  int* out = drafts + at * 2 * rows;
  for (int r = threadIdx.x; r < n; r += blockDim.x) {
    tokens[r] = max(ids[r], 0);
    out[r] = ids[r];
    out[rows + r] = static_cast<int>(float_bits(logprobs[r]));
  }
}

}  // extern "C"
