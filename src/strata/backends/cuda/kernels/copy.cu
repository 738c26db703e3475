// copy_columns: out[r, out_column ..] = x[r, column ..]; gather_rows: out[r] = x[index[r]].
#include "op.cuh"

using namespace strata;

extern "C" {

__global__ void copy_columns(const int* live, const float* x, float* out, int x_width, int out_width, int column, int out_column,
                             int width) {
  dependency_launch();
  dependency_wait();
  const int n = *live * width;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int r = i / width, c = i % width;
    out[static_cast<size_t>(r) * out_width + out_column + c] = x[static_cast<size_t>(r) * x_width + column + c];
  }
}

__global__ void gather_rows(const int* live, const int* index, const float* x, float* out, uint32_t* faults, int width, int rows) {
  dependency_launch();
  dependency_wait();
  const int n = *live * width;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int from = index[i / width];
    if (from < 0 || from >= rows)
      report(faults, kFaultRange);
    else
      out[i] = x[static_cast<size_t>(from) * width + i % width];
  }
}

}  // extern "C"
