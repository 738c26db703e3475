// Routed experts. An expert's bytes are found through a table of addresses (uint64 [num_experts]), so that they may
// lie anywhere; those that no row chose are not read. Work is shared by (expert, 64 features), a thread's
// pieces of an expert are one product, a weight block is decoded once for 128 rows. pairs, offsets: group_by_expert.
#include "cpu/kernels/linear_float.h"
#include "cpu/kernels/linear_rows.h"
#include "cpu/kernels/quantize_block.h"

namespace strata::STRATA_LEVEL {

// Activation rows of k values in the forms that the weights need: float, quantised or both.
struct Activations {
  int64_t k;
  const float* x;
  const int8_t* codes;
  const float* scales;
  const int16_t* sums;
};

// One plane of all experts.
struct Stack {
  QuantType type;
  const uint64_t* table;
  const float* scale;

  float scale_of(int64_t expert) const { return scale ? scale[expert] : 1.0f; }
};

constexpr int64_t kUnitFeatures = 64, kUnitRows = 128, kTileSize = kUnitFeatures * kUnitRows;

// Rows of one expert, up to kUnitRows pairs, and as many of its features as kTileSize results allow.
struct Unit {
  int64_t expert, feature, features;
  const int32_t* pairs;
  int64_t rows;
};

// [rows][features] of a unit.
using Tile = float[kTileSize];

static void float_tile(const Activations& a, QuantType type, const uint8_t* expert, const Unit& u, const int32_t* rows,
                       Tile y) {
  const int64_t row_bytes = float_row_bytes(type, a.k);
  float column[kFloatRows];
  for (int64_t first = 0; first < u.rows; first += kFloatRows) {
    const int64_t count = u.rows - first < kFloatRows ? u.rows - first : kFloatRows;
    for (int64_t f = 0; f < u.features; ++f) {
      float_row_product(type, expert + (u.feature + f) * row_bytes, a.k, count,
                        [&](int64_t r) { return a.x + rows[first + r] * a.k; }, column);
      for (int64_t r = 0; r < count; ++r) y[(first + r) * u.features + f] = column[r];
    }
  }
}

// Where the unit's weights begin in its expert.
static const uint8_t* unit_weights(const Activations& a, const Stack& stack, const Unit& u) {
  const uint8_t* expert = reinterpret_cast<const uint8_t*>(stack.table[u.expert]);
  return expert + u.feature * quantised_row_bytes(stack.type, a.k);
}

// y[i] = the unit's features of its expert's product with activation row rows[i]; `after`: what is read next.
static Fault expert_tile(const Activations& a, const Stack& stack, const Unit& u, const int32_t* rows,
                         const uint8_t* after, Tile y) {
  if (is_float_type(stack.type)) {
    float_tile(a, stack.type, reinterpret_cast<const uint8_t*>(stack.table[u.expert]), u, rows, y);
    return kFaultNone;
  }
  return linear_rows(stack.type, {a.k / kBlock, a.codes, a.scales, a.sums}, rows, u.rows, unit_weights(a, stack, u),
                     u.features, y, u.features, after);
}

// Calls run(unit, the one after it) for this thread's features of all experts, in units that follow one another: what
// a product brings near is then what the thread reads next. Threads share pieces of kUnitFeatures; ptr 0 and 1 are
// pairs and offsets.
template <class F>
static void for_units(const Op& op, int64_t experts, int64_t n, int thread, int threads, F&& run) {
  const int32_t *pairs = op.at<const int32_t>(0), *offsets = op.at<const int32_t>(1);
  const int64_t across = (n + kUnitFeatures - 1) / kUnitFeatures;
  int64_t pieces = 0, piece = 0;
  for (int64_t e = 0; e < experts; ++e) pieces += (offsets[e + 1] - offsets[e] + kUnitRows - 1) / kUnitRows * across;
  const Range mine = part(pieces, 1, thread, threads);
  Unit last{};
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t first = offsets[e]; first < offsets[e + 1]; first += kUnitRows, piece += across) {
      const int64_t left = offsets[e + 1] - first, rows = left < kUnitRows ? left : kUnitRows;
      const int64_t widest = kTileSize / rows / kUnitFeatures * kUnitFeatures;
      const int64_t begin = mine.begin > piece ? (mine.begin - piece) * kUnitFeatures : 0;
      const int64_t stop = (mine.end - piece) * kUnitFeatures, end = stop < n ? stop : n;
      for (int64_t f = begin; f < end; f += widest) {
        const Unit unit{e, f, end - f < widest ? end - f : widest, pairs + first, rows};
        if (last.rows > 0) run(last, unit);
        last = unit;
      }
    }
  }
  if (last.rows > 0) run(last, last);
}

// expert_gate_up: out[p] = silu(gate_e x[p / k]) * (up_e x[p / k]) for each pair p of expert e.
// ptr: pairs, offsets, x float [rows, hidden] or 0, its codes, scales, sums or 0, gate table, up table, gate scale, up
// scale, out float [pairs, n] or codes, and then its scales and sums (0: float);
// dim: gate type, up type, hidden, n, num_experts, k.
void expert_gate_up(const Op& op, int thread, int threads) {
  const Activations a{op.dim[2], op.at<const float>(2), op.at<const int8_t>(3), op.at<const float>(4),
                      op.at<const int16_t>(5)};
  const Stack gate{static_cast<QuantType>(op.dim[0]), op.at<const uint64_t>(6), op.at<const float>(8)};
  const Stack up{static_cast<QuantType>(op.dim[1]), op.at<const uint64_t>(7), op.at<const float>(9)};
  const int64_t n = op.dim[3], k = op.dim[5];
  alignas(64) Tile g, u;
  for_units(op, op.dim[4], n, thread, threads, [&](const Unit& unit, const Unit& next) {
    int32_t rows[kUnitRows];
    for (int64_t i = 0; i < unit.rows; ++i) rows[i] = unit.pairs[i] / static_cast<int32_t>(k);
    const Fault faults[2] = {expert_tile(a, gate, unit, rows, unit_weights(a, up, unit), g),
                             expert_tile(a, up, unit, rows, unit_weights(a, gate, next), u)};
    if (faults[0] != kFaultNone) return op.fault(faults[0]);
    if (faults[1] != kFaultNone) return op.fault(faults[1]);
    const float g_scale = gate.scale_of(unit.expert), u_scale = up.scale_of(unit.expert);
    bool finite = true;
    for (int64_t i = 0; i < unit.rows; ++i) {
      float *row = g + i * unit.features, *up_row = u + i * unit.features;
      for (int64_t f = 0; f < unit.features; ++f) row[f] = silu32(row[f] * g_scale) * (up_row[f] * u_scale);
      const int64_t at = unit.pairs[i] * n + unit.feature;
      if (op.ptr[11] == 0)
        memcpy(op.at<float>(10) + at, row, static_cast<size_t>(unit.features) * sizeof(float));
      else
        for (int64_t f = 0; f < unit.features; f += kBlock)
          finite &= quantize_block(row + f, op.at<int8_t>(10) + at + f, op.at<float>(11) + (at + f) / kBlock,
                                   op.at<int16_t>(12) + (at + f) / kBlock * 2);
    }
    if (!finite) op.fault(kFaultNonFinite);
  });
}

// expert_down: out[p] = down_e x[p] for each pair p of expert e.
// ptr: pairs, offsets, x float [pairs, k] or 0, its codes, scales, sums or 0, table, scale, out [pairs, n];
// dim: type, k, n, num_experts.
void expert_down(const Op& op, int thread, int threads) {
  const Activations a{op.dim[1], op.at<const float>(2), op.at<const int8_t>(3), op.at<const float>(4),
                      op.at<const int16_t>(5)};
  const Stack down{static_cast<QuantType>(op.dim[0]), op.at<const uint64_t>(6), op.at<const float>(7)};
  const int64_t n = op.dim[2];
  alignas(64) Tile y;
  for_units(op, op.dim[3], n, thread, threads, [&](const Unit& unit, const Unit& next) {
    const Fault fault = expert_tile(a, down, unit, unit.pairs, unit_weights(a, down, next), y);
    if (fault != kFaultNone) return op.fault(fault);
    const float scale = down.scale_of(unit.expert);
    for (int64_t i = 0; i < unit.rows; ++i) {
      float* out = op.at<float>(8) + unit.pairs[i] * n + unit.feature;
      for (int64_t f = 0; f < unit.features; ++f) out[f] = y[i * unit.features + f] * scale;
    }
  });
}

}  // namespace strata::STRATA_LEVEL
