// rope_store: queries and keys, normed by heads where they have norm weights, rotated by the row's position; keys and values to their
// cell of the pool. A warp a (row, head of queries, keys or values). Keys go to k_out too, where it is given, before they are turned
// for 4-bit cells; queries are turned where keys are.
#include "kv_store.cuh"
#include "step.cuh"

using namespace strata;

namespace {

struct Rope {
  const float* table;  // [max_positions, rotary / 2, 2]: cos, sin
  int rotary, style, max_positions;

  // Rotates a head in shared memory. style 0: pairs (2 i, 2 i + 1); 1: pairs (i, i + rotary / 2).
  __device__ __forceinline__ void turn(float* x, int position) const {
    const float* angle = table + static_cast<size_t>(position) * rotary;
    for (int i = lane_id(); i < rotary / 2; i += 32) {
      const int at = style == 0 ? 2 * i : i, partner = at + (style == 0 ? 1 : rotary / 2);
      const float a = x[at], b = x[partner], cosine = angle[2 * i], sine = angle[2 * i + 1];
      x[at] = fma32(a, cosine, -(b * sine));
      x[partner] = fma32(b, cosine, a * sine);
    }
    __syncwarp();
  }
};

// A head's values, which are on their way while positions and pages are read; of wide heads the first.
struct Held {
  static constexpr int kHeld = 8;
  float at[kHeld];
  __device__ __forceinline__ void load(const float* from, int dim) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane_id() + 32 * i < dim) at[i] = from[lane_id() + 32 * i];
  }
  __device__ __forceinline__ void store(const float* from, int dim, float* x) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane_id() + 32 * i < dim) x[lane_id() + 32 * i] = at[i];
    for (int i = lane_id() + 32 * kHeld; i < dim; i += 32) x[i] = from[i];
  }
};

// A head to shared memory, normed where it has a weight.
__device__ __forceinline__ void take(const Held& held, const float* from, const float* weight, int dim, float eps, float* x) {
  held.store(from, dim, x);
  __syncwarp();
  if (weight == nullptr) return;
  const float inverse = div32(1.0f, sqrt32(div32(warp_dot(x, x, dim), static_cast<float>(dim)) + eps));
  for (int i = lane_id(); i < dim; i += 32) x[i] = (x[i] * inverse) * weight[i];
  __syncwarp();
}

}  // namespace

extern "C" __global__ void rope_store(const int* live, const int* positions, const int* sequences, const int* page_table,
                                      const float* table, const float* q, const float* k, const float* v, const float* q_weight,
                                      const float* k_weight, float* q_out, float* k_out, void* k_pool, void* v_pool,
                                      unsigned short* k_scales, unsigned short* v_scales, uint32_t* faults, int heads, int kv_heads,
                                      int dim, int rotary, int style, int max_positions, int pages_per_seq, int k_type, int v_type,
                                      int num_pages, int rows, float q_eps, float k_eps) {
  STRATA_DYNAMIC_SHARED(shared);
  float* x = reinterpret_cast<float*>(shared) + warp_id() * dim;
  dependency_launch();
  dependency_wait();
  const int each = heads + 2 * kv_heads, unit = blockIdx.x * (blockDim.x / 32) + warp_id(), row = min(unit / each, rows - 1);
  const int part = unit % each, position = positions[row], sequence = sequences[row];  // with the values: one wait
  const bool query = part < heads, value = part >= heads + kv_heads;
  const int head = query ? part : part - heads - (value ? kv_heads : 0);
  const size_t at = (static_cast<size_t>(row) * (query ? heads : kv_heads) + head) * dim;
  const float* from = (query ? q : value ? v : k) + at;
  Held held;
  held.load(from, dim);
  if (unit / each >= *live) return;
  const Rope rope = {table, rotary, style, max_positions};
  if (position < 0 || position >= max_positions) {
    report(faults, kFaultRange);
    return;
  }
  if (query) {
    take(held, from, q_weight, dim, q_eps, x);
    rope.turn(x, position);
    if (k_type == kKvNibbles) turn_groups(x, dim, kv_group(dim), turn_factor(kv_group(dim)), x);
    for (int i = lane_id(); i < dim; i += 32) q_out[at + i] = x[i];
    return;
  }
  const int page = page_id(page_table, pages_per_seq, num_pages, sequence, position / kPageCells);
  take(held, from, value ? nullptr : k_weight, dim, k_eps, x);
  if (!value) {
    rope.turn(x, position);
    for (int i = lane_id(); k_out != nullptr && i < dim; i += 32) k_out[at + i] = x[i];
  }
  if (page < 0) {
    report(faults, kFaultRange);
    return;
  }
  const int group = kv_group(dim), type = value ? v_type : k_type;
  if (type == kKvNibbles) turn_groups(x, dim, group, turn_factor(group), x);
  const CellStore store = {k_pool, v_pool, k_scales, v_scales, {}, kv_heads, dim};
  for (int g = 0; g < dim; g += group)
    if (!store.put(x + g, value, type, page, head, position % kPageCells, g, min(group, dim - g), group)) report(faults, kFaultNonFinite);
}
