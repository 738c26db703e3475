// What is done head by head: norms with rotary positions, gates, keys and queries of unit length, the delta rule's gates.
// One warp a head.
#include "hadamard.cuh"
#include "rows.cuh"

using namespace strata;

namespace {
__device__ __forceinline__ int head_of_grid() { return blockIdx.x * (blockDim.x / 32) + warp_id(); }
}  // namespace

extern "C" {

// RMS norm and rotary position of each head of x [rows, heads * stride]; positions [rows, 3].
__global__ void head_norm_rope(const int* live, const int* positions, const float* table, const int* axes, const float* x,
                               const float* weight, float* out, int heads, int head_dim, int stride, int rotary, int max_positions,
                               float eps, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int u = head_of_grid();
  if (u >= *live * heads) return;
  const Rotary r{table, axes, rotary / 2, max_positions};
  const int* at = positions + u / heads * 3;
  if (!r.valid(at)) return report(faults, kFaultRange);
  norm_rotate(x + static_cast<size_t>(u) * stride, weight, head_dim, eps, r, at, Angle(r, at, lane_id()), out + static_cast<size_t>(u) * head_dim);
}

// Groups turned (ops/hadamard.py); a warp up to 64 values.
__global__ void hadamard(const int* live, const float* x, float* out, int width, int group, float factor) {
  dependency_wait();
  dependency_launch();
  const int each = (width + 63) / 64, u = head_of_grid(), row = u / each, first = u % each * 64;
  if (row >= *live) return;
  const size_t at = static_cast<size_t>(row) * width + first;
  turn_groups(x + at, min(width - first, 64), group, factor, out + at);
}

// x * sigmoid(gate); a head's gate begins at head * stride + offset of the gate's row.
__global__ void sigmoid_gate(const int* live, const float* x, const float* gate, float* out, int heads, int head_dim, int stride,
                             int offset) {
  dependency_wait();
  dependency_launch();
  const int u = head_of_grid();
  if (u >= *live * heads) return;
  const size_t at = static_cast<size_t>(u) * head_dim, gate_at = static_cast<size_t>(u) * stride + offset;
  for (int i = lane_id(); i < head_dim; i += 32) out[at + i] = x[at + i] * sigmoid32(gate[gate_at + i]);
}

// RMS norm of each head times sigmoid(z) or silu(z).
__global__ void gated_norm(const int* live, const float* x, const float* z, const float* weight, float* out, int heads, int head_dim,
                           int silu, float eps) {
  dependency_wait();
  dependency_launch();
  const int u = head_of_grid();
  if (u >= *live * heads) return;
  const size_t at = static_cast<size_t>(u) * head_dim;
  const float inverse = warp_norm_inverse(x + at, head_dim, eps);
  for (int i = lane_id(); i < head_dim; i += 32)
    out[at + i] = ((x[at + i] * inverse) * weight[i]) * (silu ? silu32(z[at + i]) : sigmoid32(z[at + i]));
}

// x / sqrt(sum x^2 + 1e-6) of the first 2 * heads heads of rows of `width`; the first half (queries) also times `scale`.
__global__ void unit_heads(const int* live, const float* x, float* out, int heads, int head_dim, int width, float scale) {
  dependency_wait();
  dependency_launch();
  const int u = head_of_grid();
  if (u >= *live * 2 * heads) return;
  x += static_cast<size_t>(u / (2 * heads)) * width + u % (2 * heads) * head_dim;
  const float inverse = div32(1.0f, sqrt32(warp_dot(x, x, head_dim) + 1e-6f));
  for (int i = lane_id(); i < head_dim; i += 32) {
    const float unit = x[i] * inverse;
    out[static_cast<size_t>(u) * head_dim + i] = u % (2 * heads) < heads ? unit * scale : unit;
  }
}

// beta = sigmoid(b), g = rate * softplus(a + bias), one thread a value head; packed > 0: b and a lie in one buffer, for each
// group of `packed` heads their b and then their a.
__global__ void delta_gates(const int* live, const float* b, const float* a, const float* rate, const float* bias, float* out, int heads,
                            int packed) {
  dependency_wait();
  dependency_launch();
  const int u = blockIdx.x * blockDim.x + threadIdx.x, row = u / heads, h = u % heads;
  if (row >= *live) return;
  const int at = packed ? row * 2 * heads + h / packed * 2 * packed + h % packed : u;
  out[row * 2 * heads + h] = sigmoid32(b[at]);
  out[row * 2 * heads + heads + h] = rate[h] * softplus32(a[at + packed] + bias[h]);
}

}  // extern "C"
