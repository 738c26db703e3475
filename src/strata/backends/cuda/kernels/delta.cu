// The delta rule's step form, and settling. Macro: STRATA_KEY_DIM.
#include "delta.cuh"

using namespace strata;

extern "C" {

// Grid (columns, heads, rows): thread blocks of a row that begins a group do the group.
__global__ void delta_settle(const int* live, const int* positions, const int* sequences, const int* commits, float* state,
                             float* pending, int key_heads, int heads, int value_dim, int tiled, int slots, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const Delta delta{{positions, sequences, *live, slots}, state, pending, key_heads, heads, value_dim, tiled};
  const int row = blockIdx.z, h = blockIdx.y, v = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (row >= delta.rows.live || v >= value_dim || !delta.rows.begins(row)) return;
  Part s;
  if (!delta.rows.valid(row) || !settle(delta, commits, sequences[row], positions[row], h, v, s)) report(faults, kFaultRange);
}

// Settles, then the group's rows; their inputs become pending. qk, mixed, gates: see ops/delta_rule.py.
__global__ void delta_rule(const int* live, const int* positions, const int* sequences, const int* commits, float* state, float* pending,
                           const float* qk, const float* mixed, const float* gates, float* out, int key_heads, int heads, int value_dim,
                           int tiled, int slots, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const Delta delta{{positions, sequences, *live, slots}, state, pending, key_heads, heads, value_dim, tiled};
  const int first = blockIdx.z, h = blockIdx.y, v = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (first >= delta.rows.live || v >= value_dim || !delta.rows.begins(first)) return;
  if (!delta.rows.valid(first)) return report(faults, kFaultRange);
  const int count = delta.rows.group_rows(first), sequence = sequences[first], position = positions[first];
  const int committed = position == 0 ? 0 : commits[sequence];
  Part s;
  if (committed + count > kRingRows || !settle(delta, commits, sequence, position, h, v, s)) return report(faults, kFaultRange);
  const int key_width = delta.key_width(), value_width = delta.value_width(), key_at = delta.key_head(h) * kKeyDim;
  for (int r = 0; r < count; ++r) {
    const int row = first + r;
    const float* q = qk + static_cast<size_t>(row) * 2 * key_width + key_at;
    const float value = mixed[static_cast<size_t>(row) * (2 * key_width + value_width) + 2 * key_width + h * value_dim + v];
    const float beta = gates[row * 2 * heads + h], g = gates[row * 2 * heads + heads + h];
    Part key, query;
    key.load(q + key_width), query.load(q);
    advance(s, key, value, beta, exp32(g));
    const float o = s.dot(query);
    float* kept = delta.kept(sequence, position + r);
    if (v == 0 && delta.owns_key(h)) key.store(kept + key_at);
    if (lane_id() != 0) continue;
    out[static_cast<size_t>(row) * value_width + h * value_dim + v] = o;
    kept[key_width + h * value_dim + v] = value;
    if (v == 0) kept[key_width + value_width + h] = beta, kept[key_width + value_width + heads + h] = g;
  }
}

}  // extern "C"
