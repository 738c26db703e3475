// What a prompt's rows need head by head, as int8 blocks where asked for. Macro: STRATA_HEAD, values of a head, a multiple of 32. A warp
// takes heads of rows in turn, a lane four neighbouring values at a time.
#include "quantize.cuh"
#include "step.cuh"

using namespace strata;

namespace {

constexpr int kHead = STRATA_HEAD, kHeld = kHead / 32, kTurns = (kHead + 127) / 128, kWarps = 8;

// Where results go: floats or, with planes, int8 blocks as well.
struct Output {
  float* out;
  int8_t* q;
  float* d;
  int16_t* sums;
  uint32_t* faults;

  // `value(i, e)`: four values from place i of the head on, in turn e; it begins at flat position `at`.
  template <class F> __device__ __forceinline__ void put(size_t at, F value) const {
#pragma unroll
    for (int e = 0; e < kTurns; ++e) {
      const int i = 4 * lane_id() + 128 * e;
      const bool ok = i < kHead;
      float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
      if (ok) v = value(i, e);
      if (ok && out != nullptr) *reinterpret_cast<float4*>(out + at + i) = v;
      if (q != nullptr) quantize_four(v, ok, at + i, q, d, sums, faults);
    }
  }
};

__device__ __forceinline__ float4 four(const float* p) { return *reinterpret_cast<const float4*>(p); }

}  // namespace

extern "C" {

// RMS norm of x's heads times sigmoid(z) or silu(z); thread blocks take units in turn, for small ones cost more to start than to run.
__global__ void __launch_bounds__(32 * kWarps) gated_norm_prompt(const int* live, const float* x, const float* z, const float* weight,
                                                                 float* out, int8_t* q, float* d, int16_t* sums, int heads, int silu,
                                                                 float eps, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int units = *live * heads;
  const Output to{out, q, d, sums, faults};
  const auto gate = [&](float g) { return silu ? silu32(g) : sigmoid32(g); };
  for (int unit = blockIdx.x * kWarps + warp_id(); unit < units; unit += gridDim.x * kWarps) {
    const size_t at = static_cast<size_t>(unit) * kHead;
    float held[kHeld], squares = 0.0f;  // in the order of lanes; the values are read again from the nearest cache
    float4 z_held[kTurns];              // on their way beside x
#pragma unroll
    for (int e = 0; e < kHeld; ++e) held[e] = x[at + 32 * e + lane_id()];
#pragma unroll
    for (int e = 0; e < kTurns; ++e)
      if (4 * lane_id() + 128 * e < kHead) z_held[e] = four(z + at + 4 * lane_id() + 128 * e);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) squares = fma32(held[e], held[e], squares);
    const float inverse = div32(1.0f, sqrt32(div32(warp_tree_sum(squares), static_cast<float>(kHead)) + eps));
    to.put(at, [&](int i, int e) {
      const float4 v = four(x + at + i), g = z_held[e], w = four(weight + i);
      return float4{((v.x * inverse) * w.x) * gate(g.x), ((v.y * inverse) * w.y) * gate(g.y), ((v.z * inverse) * w.z) * gate(g.z),
                    ((v.w * inverse) * w.w) * gate(g.w)};
    });
  }
}

// x * sigmoid(gate); a head's gate begins at head * stride + offset of the gate's row.
__global__ void __launch_bounds__(32 * kWarps) sigmoid_gate_prompt(const int* live, const float* x, const float* gate, float* out,
                                                                   int8_t* q, float* d, int16_t* sums, int heads, int stride, int offset,
                                                                   uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int units = *live * heads;
  const Output to{out, q, d, sums, faults};
  for (int unit = blockIdx.x * kWarps + warp_id(); unit < units; unit += gridDim.x * kWarps) {
    const size_t at = static_cast<size_t>(unit) * kHead, gate_at = static_cast<size_t>(unit) * stride + offset;
    to.put(at, [&](int i, int) {
      const float4 v = four(x + at + i), g = four(gate + gate_at + i);
      return float4{v.x * sigmoid32(g.x), v.y * sigmoid32(g.y), v.z * sigmoid32(g.z), v.w * sigmoid32(g.w)};
    });
  }
}

}  // extern "C"
