// The experts of a step of few rows in two launches; rows do not share what they read. Macros: STRATA_TYPE, STRATA_UP, STRATA_DOWN (formats of gate, up, down), STRATA_SHARED
// (of the shared expert's down; left out without one), STRATA_EXPERTS, STRATA_TOP (experts of a row), STRATA_HIDDEN, STRATA_INNER,
// STRATA_TAKE_LATE (1: rows of some experts come from CPU workers), STRATA_SEGMENTS, STRATA_AHEAD (of hidden), STRATA_INNER_SEGMENTS, STRATA_INNER_AHEAD, STRATA_STREAMS, STRATA_FEATURES (of a thread
// block of experts_down), STRATA_RENORMALISE, STRATA_STAGED, STRATA_INNER_STAGED (weights through shared memory: of gate and up, of down),
// STRATA_COPIES (of the grid of IQ3_XXS, packed_copies.cuh).
//
// Every thread block makes the router's choice for itself from the logits: a block that chose for all would be one more wait.
#include "experts_step.cuh"

using namespace strata;

extern "C" {

// inner[rank] = q8 of silu(gate x) * (up x). Grid (32 features, ranks, rows); dynamic shared memory: tables, then a row as q8.
__global__ void __launch_bounds__(kUpThreads, 1024 / kUpThreads) experts_gate_up(const int* live, const float* logits, const int8_t* q, const float* d,
                                                              const int16_t* sums, const uint64_t* gate, const uint64_t* up,
                                                              const float* gate_scale, const float* up_scale, int8_t* inner, float* inner_d,
                                                              int16_t* inner_sums, const uint64_t* down, uint32_t down_bytes, uint32_t* faults,
                                                              const uint8_t* ahead, uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ int chosen;
  __shared__ __align__(16) uint32_t room_of_choice[kChoiceWords];
  __shared__ __align__(16) float scratch[kUpThreads];
  __shared__ float gated[32], value[32];
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  uint32_t* up_table = STRATA_TYPE == STRATA_UP ? table : table + GatePlane::kTableWords;
  const StagedRows a = staged_rows<1, kSegs>(reinterpret_cast<uint8_t*>(up_table + UpPlane::kTableWords), kHidden);
  trace(0);
  GatePlane::template fill<1>(table);
  if (STRATA_TYPE != STRATA_UP) UpPlane::template fill<1>(up_table);
#if STRATA_LATE == 0
  ask_ahead(ahead, ahead_bytes);
#endif
  dependency_settled();  // the sublayer's rows; the logits are the last launch's
  const int step_row = blockIdx.z;
  if (step_row >= *live) return dependency_wait();
  logits += step_row * STRATA_EXPERTS;
  q += static_cast<size_t>(step_row) * kHidden, d += step_row * (kHidden / 32), sums += step_row * (kHidden / 16);
  stage_rows<1, kSegs>(a, q, d, sums, kHidden, 1);
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  const int rank = blockIdx.y, first = blockIdx.x * 32 + warp_id() * (32 / kSegs);
  [[maybe_unused]] const int row = first + lane_id() / kSegs;
  if (warp_id() == 0) {
    int mine, more;
    if (!ranked_experts<STRATA_EXPERTS>(logits, STRATA_EXPERTS, kTop, room_of_choice, mine, more)) report(faults, kFaultNonFinite);
    if (lane_id() == rank) chosen = mine;
  }
  trace(3);
  __syncthreads();
  trace(4);
  const int expert = chosen;
  const uint8_t *gate_at = reinterpret_cast<const uint8_t*>(gate[expert]), *up_at = reinterpret_cast<const uint8_t*>(up[expert]);
#if STRATA_STAGED
  using Gate = StagedChain<STRATA_TYPE, 1, kSegs, STRATA_LENGTH, GatePlane>;
  using Up = StagedChain<STRATA_UP, 1, kSegs, STRATA_LENGTH, UpPlane>;
  constexpr int kGateBytes = decltype(Gate::weights)::kBytes, kUpBytes = decltype(Up::weights)::kBytes;
  uint8_t* room = shared + (reinterpret_cast<uint8_t*>(a.sums + a.blocks) - shared + 15) / 16 * 16 + warp_id() * (kGateBytes + kUpBytes);
  const Gate g(room);
  const Up u(room + kGateBytes);
  g.weights.copy(gate_at, kInner, first), copies_group();
  u.weights.copy(up_at, kInner, first), copies_group();
#else
  SegmentChain<STRATA_TYPE, 1, kSegs, STRATA_AHEAD, STRATA_LENGTH, GatePlane> g(gate_at, kInner, kHidden / 32, row);
  SegmentChain<STRATA_UP, 1, kSegs, STRATA_AHEAD, STRATA_LENGTH, UpPlane> u(up_at, kInner, kHidden / 32, row);
  g.load_first(), u.load_first();
#endif
  // What is read next is asked for when this launch's own weights have come.
  const auto ask_for_more = [&] {
#if STRATA_FETCH_DOWN
    if (down != nullptr) fetch_down(reinterpret_cast<const uint8_t*>(down[expert]), down_bytes, blockIdx.x, gridDim.x);
#endif
#if STRATA_LATE
    ask_ahead(ahead, ahead_bytes);
#endif
  };
#if !STRATA_STAGED || STRATA_LATE == 0
  ask_for_more();
#endif
  float* mine = scratch + warp_id() * 32;
  float y[1];
#if STRATA_STAGED && STRATA_JOINT  // activations are read once for both
  float z[1] = {};
  trace(5);
  copies_wait();
  __syncwarp();
  trace(6);
#if STRATA_LATE
  ask_for_more();
#endif
  y[0] = 0.0f;
#pragma unroll STRATA_UNROLL
  for (int j = 0; j < STRATA_LENGTH; ++j) {
    const int segment = lane_id() % kSegs, b = segment * STRATA_LENGTH + j;
    block_times_rows<STRATA_TYPE, 1, GatePlane>(g.weights.block(j), table, a, b, segment, y);
    block_times_rows<STRATA_UP, 1, UpPlane>(u.weights.block(j), up_table, a, b, segment, z);
  }
#elif STRATA_STAGED
  trace(5);
  copies_wait_for_groups<1>();
  __syncwarp();
  trace(6);
#if STRATA_LATE
  ask_for_more();
#endif
  g.chain(table, a, y);
#else
  g.run(table, a, y);
#endif
  add_segments<1, kSegs>(y, mine, [&](int r, int, float total) { gated[warp_id() * (32 / kSegs) + r] = total; });
#if STRATA_STAGED && STRATA_JOINT
  y[0] = z[0];
#else
  u.run(up_table, a, y);
#endif
  add_segments<1, kSegs>(y, mine, [&](int r, int, float total) { value[warp_id() * (32 / kSegs) + r] = total; });
  trace(7);
  __syncthreads();
  trace(8);
  if (warp_id() != 0) return;
  const float gs = gate_scale ? gate_scale[expert] : 1.0f, us = up_scale ? up_scale[expert] : 1.0f;
  const float out = silu32(gated[lane_id()] * gs) * (value[lane_id()] * us);
  if (!finite32(out)) report(faults, kFaultNonFinite);
  const size_t at = static_cast<size_t>(step_row * kTop + rank) * kInner + blockIdx.x * 32;
  quantize_block(out, inner + at, inner_d + at / 32, inner_sums + at / 16);
  trace(9);
}

// The streams after the experts: a warp a rank (and one for the shared expert), kFeatures features a thread block, grid.z: rows; ranks are
// combined in order. `shared_inner`: gate and up of the shared expert, float [2][kInner].
__global__ void __launch_bounds__(kDownThreads, kDownThreads <= 512 ? 2 : 1) experts_down(const int* live, const float* logits, const int8_t* inner, const float* inner_d,
                                                             const int16_t* inner_sums, const uint64_t* down, const float* down_scale,
                                                             const float* shared_gate, const float* shared_up, const float* shared_logit,
                                                             const uint8_t* shared_down, const float* residual, const float* inject,
                                                             float* out, uint32_t* faults,
#if STRATA_TAKE_LATE
                                                             const tiers::ExpertTier* tier,
#endif
                                                             const uint8_t* ahead, uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ __align__(16) float scratch[kDownThreads];
  __shared__ float rows[kPlanes][kFeatures], weights[kTop];
  __shared__ __align__(16) uint32_t rooms_of_choice[kPlanes][kChoiceWords];
  __shared__ __align__(16) int8_t shared_q[kInner];
  __shared__ float shared_d[kInner / 32];
  __shared__ __align__(4) int16_t shared_sums[kInner / 16];
  constexpr int kTables = Packed<STRATA_DOWN>::kTableWords;
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  uint8_t* staged = shared + 4 * kTables;
  const int plane = warp_id(), lane = lane_id(), first = blockIdx.x * kFeatures;
  trace(0);
  Packed<STRATA_DOWN>::template fill<1>(table);
  dependency_settled();
  const int step_row = blockIdx.z;
  const bool alive = step_row < *live;
  logits += step_row * STRATA_EXPERTS;
  inner += static_cast<size_t>(step_row) * kTop * kInner, inner_d += step_row * kTop * (kInner / 32), inner_sums += step_row * kTop * (kInner / 16);
  Choice c{};
  if (plane < kTop && alive) {
    c = choose_experts<STRATA_EXPERTS>(logits, STRATA_EXPERTS, kTop, STRATA_RENORMALISE, rooms_of_choice[plane]);
    if (plane == 0 && lane < kTop) weights[lane] = c.weight[0];
  }
  const int expert = __shfl_sync(kFullWarp, c.id[0], plane % 32);
  const uint8_t* w = reinterpret_cast<const uint8_t*>(plane < kTop ? down[expert] : down[0]);
  const auto row_of = [&](int pass) { return min(first + pass * kPerWarp + lane / kInnerSegs, kHidden - 1); };
#if STRATA_INNER_STAGED
  using Chain = StagedChain<STRATA_DOWN, 1, kInnerSegs, STRATA_INNER_LENGTH>;
  constexpr int kPassBytes = decltype(Chain::weights)::kBytes;
  uint8_t* rooms = staged + kPlanes * ((4 * (kInner / 4 + kSegmentPad * kInnerSegs + kInner / 16) + 15) / 16 * 16) + plane * kPasses * kPassBytes;
#pragma unroll
  for (int pass = 0; pass < kPasses && plane < kTop; ++pass)
    Chain(rooms + pass * kPassBytes).weights.copy(w, kHidden, first + pass * kPerWarp);
#else
  SegmentChain<STRATA_DOWN, 1, kInnerSegs, STRATA_INNER_AHEAD, STRATA_INNER_LENGTH> chain(w, kHidden, kInner / 32, row_of(0));
  if (plane < kTop) chain.load_first();
#endif
#ifdef STRATA_SHARED
  using SharedChain = SegmentChain<STRATA_SHARED, 1, kInnerSegs, STRATA_INNER_AHEAD, STRATA_INNER_LENGTH>;
  SharedChain shared_chain(shared_down, kHidden, kInner / 32, row_of(0));
  if (plane == kTop) shared_chain.load_first();
#endif
  ask_ahead(ahead, ahead_bytes);
  if (!alive) return dependency_wait(), copies_wait();
  constexpr int kWriterUnits = kFeatures;
  StreamWriter<STRATA_STREAMS, kWriterUnits> writer(residual, inject, out, kHidden);
  if (plane == 0) writer.load(step_row, 1, first, kFeatures);
  const StagedRows a = staged_rows<1, kInnerSegs>(staged, kInner);
  const size_t row_bytes = (4 * (a.row_words + 2 * a.blocks) + 15) / 16 * 16;
  const auto rows_at = [&](int p) { return staged_rows<1, kInnerSegs>(staged + p * row_bytes, kInner); };
#ifdef STRATA_SHARED
  shared_gate += static_cast<size_t>(step_row) * kInner, shared_up += static_cast<size_t>(step_row) * kInner, shared_logit += step_row;
  for (int b = plane; b < kInner / 32; b += kPlanes) {  // the shared expert's inner row
    const float v = silu32(shared_gate[b * 32 + lane]) * shared_up[b * 32 + lane];
    if (!finite32(v)) report(faults, kFaultNonFinite);
    quantize_block(v, shared_q + b * 32, shared_d + b, shared_sums + 2 * b);
  }
  __syncthreads();
#endif
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  // A warp stages the row that it alone reads.
  const StagedRows mine = rows_at(plane);
  const int8_t* q = plane < kTop ? inner + static_cast<size_t>(plane) * kInner : shared_q;
  const float* d = plane < kTop ? inner_d + static_cast<size_t>(plane) * (kInner / 32) : shared_d;
  const int16_t* s = plane < kTop ? inner_sums + static_cast<size_t>(plane) * (kInner / 16) : shared_sums;
  for (int i = lane; i < kInner / 16; i += 32) {
    const int segment = ((i / 2 + 1) * kInnerSegs - 1) / mine.blocks;
    *reinterpret_cast<uint4*>(mine.codes + i * 4 + kSegmentPad * segment) = reinterpret_cast<const uint4*>(q)[i];
  }
  for (int b = lane; b < mine.blocks; b += 32) mine.scales[b] = d[b], mine.sums[b] = reinterpret_cast<const uint32_t*>(s)[b];
  trace(3);
  __syncthreads();  // the table too
  trace(4);
  const float scale = plane < kTop && down_scale ? down_scale[expert] : 1.0f;
  const auto store = [&](int pass) {
    return [&, pass](int r, int, float total) { rows[plane][pass * kPerWarp + r] = plane < kTop ? total * scale : total; };
  };
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    float y[1];
    if (plane < kTop) {
#if STRATA_INNER_STAGED
      Chain(rooms + pass * kPassBytes).run(table, mine, y);
#else
      chain.run(table, mine, y);
      chain.row = row_of(pass + 1);
      if (pass + 1 < kPasses) chain.load_first();
#endif
    } else {
#ifdef STRATA_SHARED
      shared_chain.run(nullptr, mine, y);
      shared_chain.row = row_of(pass + 1);
      if (pass + 1 < kPasses) shared_chain.load_first();
#endif
    }
    add_segments<1, kInnerSegs>(y, scratch + plane * 32, store(pass));
  }
#if STRATA_TAKE_LATE
  if (plane < kTop) take_late_row(*tier, expert, step_row * kTop + plane, kHidden, first, kFeatures, rows[plane], faults);
#endif
  trace(5);
  __syncthreads();
  trace(6);
  if (plane != 0) return;
  writer.store(step_row, 1, first, kFeatures, [&](int r, int) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kTop; ++i) total = combine_step(weights[i], rows[i][r], total);
#ifdef STRATA_SHARED
    total = fma32(sigmoid32(*shared_logit), rows[kTop][r], total);
#endif
    return total;
  });
  trace(7);
}

}  // extern "C"
