// The delta rule's part of a sublayer in one launch, step form: convolution, unit heads, gates, recurrence, norm with gate, q8.
// A thread block is a value head of one sequence's rows. The state is read, brought up to date and stored before the rows are there:
// what this step does not write is complete when the launch before is past its wait (ptx.cuh `dependency_settled`).
// Macros: STRATA_KEY_DIM, STRATA_VALUE_DIM, STRATA_KERNEL (taps), STRATA_SILU (of the gate), STRATA_ROWS (most rows of a group).
#include "delta.cuh"

using namespace strata;

namespace {

constexpr int kValueDim = STRATA_VALUE_DIM, kTaps = STRATA_KERNEL, kRows = STRATA_ROWS;
constexpr int kThreads = 512, kWarps = kThreads / 32, kColumns = (kValueDim + kWarps - 1) / kWarps;  // columns a warp

struct Ring {
  float* at;  // [slots, rows, channels]
  int rows, channels;
  __device__ __forceinline__ float* column(int slot, int position) const {
    return at + (static_cast<size_t>(slot) * rows + position % rows) * channels;
  }
};

struct HeadRows {
  float q[kRows][kKeyDim], k[kRows][kKeyDim], v[kRows][kValueDim], o[kRows][kValueDim];
  float beta[kRows], g[kRows];
};

// Channel c of the convolved row r of the group.
__device__ __forceinline__ float convolve(const float* x, const float* weight, const Ring& ring, int first, int r, int sequence, int position,
                                          int c) {
  float tap[kTaps], w[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    const int back = kTaps - 1 - j;
    w[j] = weight[c * kTaps + j];
    tap[j] = 0.0f;
    if (back <= r)
      tap[j] = x[static_cast<size_t>(first + r - back) * ring.channels + c];
    else if (position + r - back >= 0)
      tap[j] = ring.column(sequence, position + r - back)[c];
  }
  float y = 0.0f;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) y = fma32(w[j], tap[j], y);
  return silu32(y);
}

// One warp: x / sqrt(sum x^2 + 1e-6), in place, times `scale` where it is not 0.
__device__ __forceinline__ void unit_head(float* x, float scale) {
  const float inverse = div32(1.0f, sqrt32(warp_dot(x, x, kKeyDim) + 1e-6f));
  for (int i = lane_id(); i < kKeyDim; i += 32) {
    const float unit = x[i] * inverse;
    x[i] = scale != 0.0f ? unit * scale : unit;
  }
}

}  // namespace

// qkv [rows, channels], b and a (packed: see delta_gates), z [rows, values]; out q8 [rows, values]. Grid (heads, 1, rows).
extern "C" __global__ void __launch_bounds__(kThreads) delta_mixer(
    const int* live, const int* positions, const int* sequences, const int* commits, float* state, float* pending, const float* qkv,
    const float* conv_weight, float* ring_rows_at, const float* b, const float* a, const float* rate, const float* bias, const float* z,
    const float* norm, int8_t* q8, float* q8_d, int16_t* q8_sums, int key_heads, int heads, int tiled, int slots, int ring_rows, int packed,
    float query_scale, float eps, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  HeadRows& rows = *reinterpret_cast<HeadRows*>(shared);
  dependency_settled();
  const Delta delta{{positions, sequences, *live, slots}, state, pending, key_heads, heads, kValueDim, tiled};
  const int first = blockIdx.z, h = blockIdx.x;
  if (first >= delta.rows.live || !delta.rows.begins(first)) return dependency_wait();
  const int sequence = sequences[first], position = positions[first], count = delta.rows.group_rows(first);
  const int committed = position == 0 || !delta.rows.valid(first) ? 0 : commits[sequence];
  if (!delta.rows.valid(first) || count > kRows || committed < 0 || committed + count > kRingRows || committed > position) {
    report(faults, kFaultRange);
    return dependency_wait();
  }
  Part s[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int v = warp_id() + kWarps * i;
    if (v < kValueDim) settle(delta, commits, sequence, position, h, v, s[i]);
  }
  dependency_wait();
  dependency_launch();
  const int key_width = delta.key_width(), key_at = delta.key_head(h) * kKeyDim, channels = 2 * key_width + heads * kValueDim;
  const bool owner = delta.owns_key(h);
  const Ring ring{ring_rows_at, ring_rows, channels};
  for (int i = threadIdx.x; i < count * (2 * kKeyDim + kValueDim); i += kThreads) {
    const int r = i / (2 * kKeyDim + kValueDim), e = i % (2 * kKeyDim + kValueDim);
    const bool is_value = e >= 2 * kKeyDim;
    const int c = is_value ? 2 * key_width + h * kValueDim + e - 2 * kKeyDim : (e >= kKeyDim ? key_width + e - kKeyDim : e) + key_at;
    const float y = convolve(qkv, conv_weight, ring, first, r, sequence, position, c);
    if (is_value)
      rows.v[r][e - 2 * kKeyDim] = y;
    else if (e >= kKeyDim)
      rows.k[r][e - kKeyDim] = y;
    else
      rows.q[r][e] = y;
    if (is_value || owner) ring.column(sequence, position + r)[c] = qkv[static_cast<size_t>(first + r) * channels + c];
  }
  for (int r = threadIdx.x; r < count; r += kThreads) {
    const int u = (first + r) * heads + h;
    const int at = packed ? (first + r) * 2 * heads + h / packed * 2 * packed + h % packed : u;
    rows.beta[r] = sigmoid32(b[at]);
    rows.g[r] = rate[h] * softplus32(a[at + packed] + bias[h]);
  }
  __syncthreads();
  for (int u = warp_id(); u < 2 * count; u += kWarps) {
    if (u % 2 == 0)
      unit_head(rows.q[u / 2], query_scale);
    else
      unit_head(rows.k[u / 2], 0.0f);
  }
  __syncthreads();
  for (int r = 0; r < count; ++r) {
    Part key, query;
    key.load(rows.k[r]), query.load(rows.q[r]);
    const float beta = rows.beta[r], decay = exp32(rows.g[r]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int v = warp_id() + kWarps * i;
      if (v >= kValueDim) continue;
      advance(s[i], key, rows.v[r][v], beta, decay);
      const float o = s[i].dot(query);
      if (lane_id() == 0) rows.o[r][v] = o;
    }
    float* kept = delta.kept(sequence, position + r);
    for (int i = threadIdx.x; owner && i < kKeyDim; i += kThreads) kept[key_at + i] = rows.k[r][i];
    for (int i = threadIdx.x; i < kValueDim; i += kThreads) kept[key_width + h * kValueDim + i] = rows.v[r][i];
    if (threadIdx.x == 0) {
      float* gates = kept + key_width + heads * kValueDim;
      gates[h] = rows.beta[r], gates[heads + h] = rows.g[r];
    }
  }
  __syncthreads();
  for (int u = warp_id(); u < count * (kValueDim / 32); u += kWarps) {
    const int r = u / (kValueDim / 32), part = u % (kValueDim / 32) * 32 + lane_id();
    const float inverse = warp_norm_inverse(rows.o[r], kValueDim, eps);
    const size_t at = (static_cast<size_t>(first + r) * heads + h) * kValueDim + part;
    const float gate = z[at], value = ((rows.o[r][part] * inverse) * norm[part]) * (STRATA_SILU ? silu32(gate) : sigmoid32(gate));
    if (!finite32(value)) report(faults, kFaultNonFinite);
    const size_t block = at - lane_id();
    quantize_block(value, q8 + block, q8_d + block / 32, q8_sums + block / 16);
  }
}
