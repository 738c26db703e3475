// The delta rule's part of a sublayer in one launch, step form: convolution, unit heads, gates, recurrence, norm with gate, q8.
// A thread block is a value head of one sequence's rows. The state is read, brought up to date and stored before the rows are there:
// what this step does not write is complete when the launch before is past its wait (ptx.cuh `dependency_settled`).
// Macros: STRATA_KEY_DIM, STRATA_VALUE_DIM, STRATA_KERNEL (taps), STRATA_SILU (of the gate), STRATA_ROWS (most rows of a group).
#include "ahead.cuh"
#include "delta.cuh"

using namespace strata;

namespace {

constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }
constexpr int kValueDim = STRATA_VALUE_DIM, kTaps = STRATA_KERNEL, kRows = STRATA_ROWS;
constexpr int kThreads = 512, kWarps = kThreads / 32, kColumns = power_of_two_from((kValueDim + kWarps - 1) / kWarps);  // columns a warp

constexpr int kChannels = 2 * kKeyDim + kValueDim, kTurns = (kChannels + kThreads - 1) / kThreads;  // a head's

struct Ring {
  float* at;  // [slots, rows, channels]
  int rows, channels;
  __device__ __forceinline__ float* column(int slot, int position) const {
    return at + (static_cast<size_t>(slot) * rows + position % rows) * channels;
  }
};

// Channel of value e of a head's queries, keys and values.
__device__ __forceinline__ int channel_of(int e, int h, int key_at, int key_width) {
  if (e >= 2 * kKeyDim) return 2 * key_width + h * kValueDim + e - 2 * kKeyDim;
  return (e >= kKeyDim ? key_width + e - kKeyDim : e) + key_at;
}

struct HeadRows {
  float q[kRows][kKeyDim], k[kRows][kKeyDim], v[kRows][kValueDim], o[kRows][kValueDim];
  float beta[kRows], g[kRows], decay[kRows];
};

// A channel's taps: its weights and the values before the next row, the oldest first.
struct Taps {
  float weight[kTaps], before[kTaps];

  // Those of the rows before `position`; may come before this step's rows are there.
  __device__ __forceinline__ void load(const float* w, const Ring& ring, int sequence, int position, int c) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      weight[j] = w[c * kTaps + j];
      const int back = kTaps - 1 - j;
      before[j] = back > 0 && position >= back ? ring.column(sequence, position - back)[c] : 0.0f;
    }
  }
  // The convolved value of the next row, which is x.
  __device__ __forceinline__ float next(float x) {
    before[kTaps - 1] = x;
    float y = 0.0f;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) y = fma32(weight[j], before[j], y);
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) before[j] = before[j + 1];
    return silu32(y);
  }
};

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
    float query_scale, float eps, uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  HeadRows& rows = *reinterpret_cast<HeadRows*>(shared);
  trace(0);
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
  const int key_width = delta.key_width(), key_at = delta.key_head(h) * kKeyDim, channels = 2 * key_width + heads * kValueDim;
  const bool owner = delta.owns_key(h);
  const Ring ring{ring_rows_at, ring_rows, channels};
  Taps taps[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int e = threadIdx.x + turn * kThreads;
    if (e < kChannels) taps[turn].load(conv_weight, ring, sequence, position, channel_of(e, h, key_at, key_width));
  }
  const float rate_h = rate[h], bias_h = bias[h], norm_part = norm[threadIdx.x % kValueDim];
  Part s[kColumns];
  settle_columns(delta, committed, sequence, position, h, warp_id(), kWarps, s);
  ask_ahead(ahead, ahead_bytes);
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  // The first row's gate, for the end: a thread a value.
  const size_t first_out = (static_cast<size_t>(first) * heads + h) * kValueDim;
  const float first_gate = threadIdx.x < kValueDim ? z[first_out + threadIdx.x] : 0.0f;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int e = threadIdx.x + turn * kThreads, c = channel_of(e, h, key_at, key_width);
    if (e >= kChannels) continue;
    const bool is_value = e >= 2 * kKeyDim;
    float* to = is_value ? rows.v[0] + e - 2 * kKeyDim : e >= kKeyDim ? rows.k[0] + e - kKeyDim : rows.q[0] + e;
    for (int r = 0; r < count; ++r) {
      const float x = qkv[static_cast<size_t>(first + r) * channels + c];
      to[r * (is_value ? kValueDim : kKeyDim)] = taps[turn].next(x);
      if (is_value || owner) ring.column(sequence, position + r)[c] = x;
    }
  }
  for (int r = kThreads - 1 - static_cast<int>(threadIdx.x); r < count; r += kThreads) {  // by threads without a channel, where there are some
    const int u = (first + r) * heads + h;
    const int at = packed ? (first + r) * 2 * heads + h / packed * 2 * packed + h % packed : u;
    rows.beta[r] = sigmoid32(b[at]);
    rows.g[r] = rate_h * softplus32(a[at + packed] + bias_h);
    rows.decay[r] = exp32(rows.g[r]);
  }
  __syncthreads();
  trace(3);
  for (int u = warp_id(); u < 2 * count; u += kWarps) {
    if (u % 2 == 0)
      unit_head(rows.q[u / 2], query_scale);
    else
      unit_head(rows.k[u / 2], 0.0f);
  }
  __syncthreads();
  trace(4);
  for (int r = 0; r < count; ++r) {
    Part key, query;
    key.load(rows.k[r]), query.load(rows.q[r]);
    const float beta = rows.beta[r], decay = rows.decay[r];
    const int v = warp_id() + kWarps * (lane_id() / (32 / kColumns));  // this lane's column
    advance_columns(s, key, v < kValueDim ? rows.v[r][v] : 0.0f, beta, decay);
    const float o = column_dots(s, query);
    if (lane_id() % (32 / kColumns) == 0 && v < kValueDim) rows.o[r][v] = o;
    float* kept = delta.kept(sequence, position + r);
    for (int i = threadIdx.x; owner && i < kKeyDim; i += kThreads) kept[key_at + i] = rows.k[r][i];
    for (int i = threadIdx.x; i < kValueDim; i += kThreads) kept[key_width + h * kValueDim + i] = rows.v[r][i];
    if (threadIdx.x == 0) {
      float* gates = kept + key_width + heads * kValueDim;
      gates[h] = rows.beta[r], gates[heads + h] = rows.g[r];
    }
  }
  __syncthreads();
  trace(5);
  static_assert(kWarps % (kValueDim / 32) == 0, "a thread's values lie at one place of their rows");
  for (int u = warp_id(); u < count * (kValueDim / 32); u += kWarps) {
    const int r = u / (kValueDim / 32), part = u % (kValueDim / 32) * 32 + lane_id();
    const float inverse = warp_norm_inverse(rows.o[r], kValueDim, eps);
    const size_t at = (static_cast<size_t>(first + r) * heads + h) * kValueDim + part;
    const float gate = u < kValueDim / 32 ? first_gate : z[at];
    const float value = ((rows.o[r][part] * inverse) * norm_part) * (STRATA_SILU ? silu32(gate) : sigmoid32(gate));
    if (!finite32(value)) report(faults, kFaultNonFinite);
    const size_t block = at - lane_id();
    quantize_block(value, q8 + block, q8_d + block / 32, q8_sums + block / 16);
  }
  trace(6);
}
