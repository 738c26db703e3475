// rms_norm over the pieces of a row; a warp a piece.
#include "op.cuh"
#include "step.cuh"

extern "C" __global__ void rms_norm(const int* live, const float* x, const float* weight, float* out, int width, int pieces,
                                    float eps) {
  strata::dependency_launch();
  strata::dependency_wait();
  strata::rms_norm(x, weight, *live * pieces, width, eps, out);
}
