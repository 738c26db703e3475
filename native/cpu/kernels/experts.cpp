// Routed experts. An expert's bytes are found through a table of addresses (uint64 [num_experts]), so that they may
// lie anywhere; those that no row chose are not read. Work is shared by (expert, 32 features): a weight block is
// decoded once for up to 128 rows. pairs, offsets: see group_by_expert (router.cpp). A scale address of 0 means none.
#include "cpu/kernels/linear_float.h"
#include "cpu/kernels/linear_tile.h"
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

// Rows of one expert and 32 of its features: up to kTileRows pairs.
struct Unit {
  int64_t expert, feature, features;
  const int32_t* pairs;
  int64_t rows;
};

// One expert's quantised product: row i of a tile is activation row rows[i].
struct ExpertQ {
  int64_t blocks, n;
  const int8_t* codes;
  const float* scales;
  const int16_t* sums;
  const uint8_t* weight;
  float* out;
  const int32_t* rows;

  int64_t input(int64_t row) const { return rows[row]; }
};

using Tile = float[kTileRows][kTileFeatures];

template <QuantType T>
static void quantised_tile(const Activations& a, const uint8_t* expert, const Unit& u, const int32_t* rows, Tile y) {
  const int64_t row_bytes = a.k / Format<T>::values * Format<T>::bytes;
  const ExpertQ p{a.k / kBlock, kTileFeatures, a.codes, a.scales, a.sums, expert + u.feature * row_bytes, y[0], rows};
  if (u.rows > 1) return tile_product<T>(p, 0, u.rows, 0, u.features);
  for (int64_t f = 0; f < u.features; ++f) y[0][f] = row_product<T>(p, 0, f);
}

static void float_tile(const Activations& a, QuantType type, const uint8_t* expert, const Unit& u, const int32_t* rows,
                       Tile y) {
  const int64_t row_bytes = float_row_bytes(type, a.k);
  float column[kFloatRows];
  for (int64_t first = 0; first < u.rows; first += kFloatRows) {
    const int64_t count = u.rows - first < kFloatRows ? u.rows - first : kFloatRows;
    for (int64_t f = 0; f < u.features; ++f) {
      float_row_product(type, expert + (u.feature + f) * row_bytes, a.k, count,
                        [&](int64_t r) { return a.x + rows[first + r] * a.k; }, column);
      for (int64_t r = 0; r < count; ++r) y[first + r][f] = column[r];
    }
  }
}

// y[i] = the unit's features of its expert's product with activation row rows[i]; false for a type not in the table.
static bool expert_tile(const Activations& a, const Stack& stack, const Unit& u, const int32_t* rows, Tile y) {
  const uint8_t* expert = reinterpret_cast<const uint8_t*>(stack.table[u.expert]);
  if (!is_float_type(stack.type))
    return with_quantised_format(stack.type, [&]<QuantType T>() { quantised_tile<T>(a, expert, u, rows, y); });
  float_tile(a, stack.type, expert, u, rows, y);
  return true;
}

// Calls run(unit) for this thread's units of n features; ptr 0 and 1 are pairs and offsets.
template <class F>
STRATA_HD void for_units(const Op& op, int64_t experts, int64_t n, int thread, int threads, F&& run) {
  const int32_t *pairs = op.at<const int32_t>(0), *offsets = op.at<const int32_t>(1);
  int64_t turn = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t first = offsets[e]; first < offsets[e + 1]; first += kTileRows) {
      const int64_t left = offsets[e + 1] - first, rows = left < kTileRows ? left : kTileRows;
      for (int64_t f = 0; f < n; f += kTileFeatures)
        if (turn++ % threads == thread)
          run(Unit{e, f, n - f < kTileFeatures ? n - f : kTileFeatures, pairs + first, rows});
    }
  }
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
  for_units(op, op.dim[4], n, thread, threads, [&](const Unit& unit) {
    int32_t rows[kTileRows];
    for (int64_t i = 0; i < unit.rows; ++i) rows[i] = unit.pairs[i] / static_cast<int32_t>(k);
    if (!expert_tile(a, gate, unit, rows, g) || !expert_tile(a, up, unit, rows, u)) return op.fault(kFaultRange);
    const float g_scale = gate.scale_of(unit.expert), u_scale = up.scale_of(unit.expert);
    bool finite = true;
    for (int64_t i = 0; i < unit.rows; ++i) {
      for (int64_t f = 0; f < unit.features; ++f) g[i][f] = silu32(g[i][f] * g_scale) * (u[i][f] * u_scale);
      const int64_t at = unit.pairs[i] * n + unit.feature;
      if (op.ptr[11] == 0)
        memcpy(op.at<float>(10) + at, g[i], static_cast<size_t>(unit.features) * sizeof(float));
      else
        finite &= quantize_block(g[i], op.at<int8_t>(10) + at, op.at<float>(11) + at / kBlock,
                                 op.at<int16_t>(12) + at / kBlock * 2);
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
  for_units(op, op.dim[3], n, thread, threads, [&](const Unit& unit) {
    if (!expert_tile(a, down, unit, unit.pairs, y)) return op.fault(kFaultRange);
    const float scale = down.scale_of(unit.expert);
    for (int64_t i = 0; i < unit.rows; ++i) {
      float* out = op.at<float>(8) + unit.pairs[i] * n + unit.feature;
      for (int64_t f = 0; f < unit.features; ++f) out[f] = y[i][f] * scale;
    }
  });
}

}  // namespace strata::STRATA_LEVEL
