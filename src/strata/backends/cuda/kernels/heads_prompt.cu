// What a prompt's rows need head by head, as int8 blocks where asked for. Macro: STRATA_HEAD, values of a head, a multiple of 32. A warp
// a head and row; element i of a head in lane i mod 32.
#include "rows.cuh"

using namespace strata;

namespace {

constexpr int kHead = STRATA_HEAD, kHeld = kHead / 32, kWarps = 4;

// Where results go: floats or, with planes, int8 blocks as well.
struct Output {
  float* out;
  int8_t* q;
  float* d;
  int16_t* sums;
  uint32_t* faults;
  __device__ __forceinline__ void put(size_t at, float v) const {
    if (out != nullptr) out[at + lane_id()] = v;
    if (q == nullptr) return;
    if (!finite32(v)) report(faults, kFaultNonFinite);
    quantize_block(v, q + at, d + at / 32, sums + at / 16);
  }
};

}  // namespace

extern "C" {

// RMS norm of x's heads times sigmoid(z) or silu(z).
__global__ void __launch_bounds__(32 * kWarps) gated_norm_prompt(const int* live, const float* x, const float* z, const float* weight,
                                                                 float* out, int8_t* q, float* d, int16_t* sums, int heads, int silu,
                                                                 float eps, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int unit = blockIdx.x * kWarps + warp_id();
  if (unit / heads >= *live) return;
  const size_t at = static_cast<size_t>(unit) * kHead;
  float v[kHeld], gate[kHeld], squares = 0.0f;
#pragma unroll
  for (int e = 0; e < kHeld; ++e) v[e] = x[at + 32 * e + lane_id()], gate[e] = z[at + 32 * e + lane_id()];
#pragma unroll
  for (int e = 0; e < kHeld; ++e) squares = fma32(v[e], v[e], squares);
  const float inverse = div32(1.0f, sqrt32(div32(warp_tree_sum(squares), static_cast<float>(kHead)) + eps));
  const Output to{out, q, d, sums, faults};
#pragma unroll
  for (int e = 0; e < kHeld; ++e)
    to.put(at + 32 * e, ((v[e] * inverse) * weight[32 * e + lane_id()]) * (silu ? silu32(gate[e]) : sigmoid32(gate[e])));
}

// x * sigmoid(gate); a head's gate begins at head * stride + offset of the gate's row.
__global__ void __launch_bounds__(32 * kWarps) sigmoid_gate_prompt(const int* live, const float* x, const float* gate, float* out,
                                                                   int8_t* q, float* d, int16_t* sums, int heads, int stride, int offset,
                                                                   uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int unit = blockIdx.x * kWarps + warp_id();
  if (unit / heads >= *live) return;
  const size_t at = static_cast<size_t>(unit) * kHead, gate_at = static_cast<size_t>(unit) * stride + offset;
  const Output to{out, q, d, sums, faults};
#pragma unroll
  for (int e = 0; e < kHeld; ++e) to.put(at + 32 * e, x[at + 32 * e + lane_id()] * sigmoid32(gate[gate_at + 32 * e + lane_id()]));
}

}  // extern "C"
