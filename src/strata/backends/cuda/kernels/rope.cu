// rope: rotates pairs of every head by the row's position; values from `rotary` on pass. A thread block a row.
#include "op.cuh"

using namespace strata;

// style 0: pairs (2 i, 2 i + 1); 1: pairs (i, i + rotary / 2). table [max_positions, rotary / 2, 2]: cos, sin.
extern "C" __global__ void rope(const int* live, const int* positions, const float* table, const float* x, float* out,
                                uint32_t* faults, int heads, int head_dim, int rotary, int style, int max_positions) {
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.x, half = rotary / 2;
  if (r >= *live) return;
  const int position = positions[r];
  if (position < 0 || position >= max_positions) {
    report(faults, kFaultRange);
    return;
  }
  const float* angle = table + static_cast<size_t>(position) * rotary;
  const float* from = x + static_cast<size_t>(r) * heads * head_dim;
  float* to = out + static_cast<size_t>(r) * heads * head_dim;
  const int units = half + head_dim - rotary;  // pairs, then values that pass
  for (int u = threadIdx.x; u < heads * units; u += blockDim.x) {
    const int head = u / units * head_dim, i = u % units;
    if (i >= half) {
      to[head + i + half] = from[head + i + half];
      continue;
    }
    const int at = head + (style == 0 ? 2 * i : i), partner = at + (style == 0 ? 1 : half);
    const float a = from[at], b = from[partner], cosine = angle[2 * i], sine = angle[2 * i + 1];
    to[at] = fma32(a, cosine, -(b * sine));
    to[partner] = fma32(b, cosine, a * sine);
  }
}
