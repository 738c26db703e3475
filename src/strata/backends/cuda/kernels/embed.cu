// embed: out[r] = the float values of row tokens[r] of a table [vocab, width] of STRATA_TYPE, as the file stores it. A thread
// 32 values (float types: one).
#include "embed.cuh"

using namespace strata;

extern "C" __global__ void embed(const int* live, const int* tokens, const uint8_t* table, float* out, uint32_t* faults, int width,
                                 int vocab) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int each = kEmbedEach<T>;
  dependency_launch();
  dependency_wait();
  const int parts = width / each, n = *live * parts;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int r = i / parts, token = tokens[r];
    if (token < 0 || token >= vocab) {
      report(faults, kFaultRange);
      continue;
    }
    const size_t row_bytes = static_cast<size_t>(width / Layout<T>::values) * Layout<T>::bytes;
    embedded<T>(table + token * row_bytes, i % parts, out + static_cast<size_t>(r) * width);
  }
}
