// The experts of a step of two to eight rows in two launches: an expert that several rows chose is read once. Macros: experts_step.cu's
// (STRATA_STAGED and STRATA_INNER_STAGED must be 1), STRATA_ROWS (most rows of the step).
#include "expert_list.cuh"
#include "experts_step.cuh"

using namespace strata;

namespace {

constexpr int R = STRATA_ROWS, kTiles = (kInner + 31) / 32;
constexpr int kSharedRows = R % 4 == 0 ? 4 : R % 3 == 0 ? 3 : R % 2 == 0 ? 2 : 1;  // that the shared expert's down takes at once
static_assert(STRATA_STAGED && STRATA_INNER_STAGED && R >= 2 && R <= 8);

using Gate = StagedWeights<STRATA_TYPE, kSegs, STRATA_LENGTH>;
using Up = StagedWeights<STRATA_UP, kSegs, STRATA_LENGTH>;
using Choices = ExpertList<R, STRATA_EXPERTS, kTop, R>;      // an item: an expert and all its rows
using PairChoices = ExpertList<R, STRATA_EXPERTS, kTop, 2>;  // and up to two of its rows

// Rows r0 and r1 of staged rows, as if they were the first two.
__device__ __forceinline__ StagedRows two_rows(const StagedRows& a, int r0, int r1) {
  return {a.codes + r0 * a.row_words, a.scales + r0 * a.blocks, a.sums + r0 * a.blocks, (r1 - r0) * a.row_words, (r1 - r0) * a.blocks};
}

// Gate's and up's chains of this lane's segment, for N rows.
template <int N>
__device__ __forceinline__ void gate_and_up(const Gate& g, const Up& u, const uint32_t* table, const uint32_t* up_table, const StagedRows& a,
                                            float (&y)[N], float (&z)[N]) {
  const int segment = lane_id() % kSegs;
#pragma unroll
  for (int m = 0; m < N; ++m) y[m] = 0.0f, z[m] = 0.0f;
#pragma unroll STRATA_UNROLL
  for (int j = 0; j < STRATA_LENGTH; ++j) {
    const int b = segment * STRATA_LENGTH + j;
    block_times_rows<STRATA_TYPE, N, GatePlane>(g.block(j), table, a, b, segment, y);
    block_times_rows<STRATA_UP, N, UpPlane>(u.block(j), up_table, a, b, segment, z);
  }
}

}  // namespace

extern "C" {

// inner[row, rank] = q8 of silu(gate x) * (up x). Thread blocks take (expert, 32 features) in turn; a warp asks for its next weights as
// soon as it has used the ones before. Dynamic shared memory: tables, the rows as q8, a warp's weights.
__global__ void __launch_bounds__(kUpThreads, 1024 / kUpThreads) experts_gate_up_rows(
    const int* live, const float* logits, const int8_t* q, const float* d, const int16_t* sums, const uint64_t* gate, const uint64_t* up,
    const float* gate_scale, const float* up_scale, int8_t* inner, float* inner_d, int16_t* inner_sums, const uint64_t* down,
    uint32_t down_bytes, uint32_t* faults, const uint8_t* ahead, uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ Choices choices;
  __shared__ __align__(16) float scratch[kSegs][64];  // a warp's; of those that choose, kChoiceWords before
  __shared__ float gated[R][32], value[R][32];        // of the item's rows in turn
  static_assert(kChoiceWords <= 64);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  uint32_t* up_table = STRATA_TYPE == STRATA_UP ? table : table + GatePlane::kTableWords;
  const StagedRows a = staged_rows<R, kSegs>(reinterpret_cast<uint8_t*>(up_table + UpPlane::kTableWords), kHidden);
  uint8_t* room = shared + (reinterpret_cast<uint8_t*>(a.sums + R * a.blocks) - shared + 15) / 16 * 16 + warp_id() * (Gate::kBytes + Up::kBytes);
  const Gate g(room);
  const Up u(room + Gate::kBytes);
  trace(0);
  GatePlane::template fill<1>(table);
  if (STRATA_TYPE != STRATA_UP) UpPlane::template fill<1>(up_table);
  choices.clear();
  dependency_settled();  // the sublayer's rows; the logits are the last launch's
  const int rows = min(*live, R);
  if (rows <= 0) return dependency_wait();
  stage_even<R, kSegs, STRATA_LENGTH>(a, q, d, sums, rows);
  __syncthreads();
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  for (int row = warp_id(); row < rows; row += kSegs) {
    int mine, more;
    uint32_t* own = reinterpret_cast<uint32_t*>(scratch[warp_id()]);
    if (!ranked_experts<STRATA_EXPERTS>(logits + row * STRATA_EXPERTS, STRATA_EXPERTS, kTop, own, mine, more)) report(faults, kFaultNonFinite);
    choices.put(row, mine);
  }
  __syncthreads();
  choices.close(rows);
  __syncthreads();
  trace(3);
  const int items = choices.size * kTiles;
  // Calls f(weights, where the matrix lies, this warp's first row) for an item's gate and up.
  const auto each = [&](int item, auto f) {
    if (item >= items) return;
    const int expert = static_cast<int>(choices.items[item / kTiles] & 0xffffu), first = item % kTiles * 32 + warp_id() * (32 / kSegs);
    f(g, reinterpret_cast<const uint8_t*>(gate[expert]), first), f(u, reinterpret_cast<const uint8_t*>(up[expert]), first);
  };
  const auto copy = [&](int item) { each(item, [](const auto& weights, const uint8_t* w, int first) { weights.copy(w, kInner, first); }); };
  int item = blockIdx.x;
  copy(item);
  if (item >= items) ask_ahead(ahead, ahead_bytes);
#pragma unroll 1
  for (; item < items; item += gridDim.x) {
    const int expert = static_cast<int>(choices.items[item / kTiles] & 0xffffu), tile = item % kTiles;
    const uint32_t chose = choices.items[item / kTiles] >> 16;
    copies_wait();
    __syncwarp();
    trace(item < static_cast<int>(gridDim.x) ? 4 : 5);
    // What is read later is asked for when the first of this launch's own weights have come.
    if (item < static_cast<int>(gridDim.x)) ask_ahead(ahead, ahead_bytes);
    if (STRATA_FETCH_DOWN && down != nullptr) fetch_down(reinterpret_cast<const uint8_t*>(down[expert]), down_bytes, tile, kTiles);
    const auto keep = [&](const auto& y, float (*to)[32], int at) {
      add_segments<sizeof(y) / sizeof(float), kSegs>(
          y, scratch[warp_id()], [&](int r, int m, float total) { to[at + m][warp_id() * (32 / kSegs) + r] = total; });
    };
    int at = 0;
    for (uint32_t left = chose; left != 0; at += 2) {  // decoded once for two rows
      const int r0 = take_bit(left);
      if (left == 0) {
        float y[1], z[1];
        gate_and_up<1>(g, u, table, up_table, two_rows(a, r0, r0), y, z);
        keep(y, gated, at), keep(z, value, at);
      } else {
        float y[2], z[2];
        gate_and_up<2>(g, u, table, up_table, two_rows(a, r0, take_bit(left)), y, z);
        keep(y, gated, at), keep(z, value, at);
      }
    }
    __syncwarp();  // all lanes have read the weights
    copy(item + static_cast<int>(gridDim.x));
    __syncthreads();
    trace(6);
    const float gs = gate_scale ? gate_scale[expert] : 1.0f, us = up_scale ? up_scale[expert] : 1.0f;
    for (int i = warp_id(); i < __popc(chose); i += kSegs) {
      uint32_t left = chose;
      for (int before = 0; before < i; ++before) take_bit(left);
      const int row = take_bit(left), rank = choices.rank_of(row, expert);
      const float out = silu32(gated[i][lane_id()] * gs) * (value[i][lane_id()] * us);
      if (!finite32(out)) report(faults, kFaultNonFinite);
      const size_t to = static_cast<size_t>(row * kTop + rank) * kInner + tile * 32;
      quantize_block(out, inner + to, inner_d + to / 32, inner_sums + to / 16);
    }
    __syncthreads();
  }
  trace(9);
}

// The streams after the experts: kFeatures features a thread block, for all rows. A warp a rank takes (expert, up to two rows) in turn,
// the next of which are on their way, and one more the shared expert; ranks are combined in order, by a warp a row.
__global__ void __launch_bounds__(kDownThreads, kDownThreads <= 512 ? 2 : 1) experts_down_rows(
    const int* live, const float* logits, const int8_t* inner, const float* inner_d, const int16_t* inner_sums, const uint64_t* down,
    const float* down_scale, const float* shared_gate, const float* shared_up, const float* shared_logit, const uint8_t* shared_down,
    const float* residual, const float* inject, float* out, uint32_t* faults,
#if STRATA_TAKE_LATE
    const tiers::ExpertTier* tier,
#endif
    const uint8_t* ahead, uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  using Weights = StagedWeights<STRATA_DOWN, kInnerSegs, STRATA_INNER_LENGTH>;
  constexpr int kBlocks = kInner / 32, kRowWords = kInner / 4 + kSegmentPad * kInnerSegs, kRowBytes = 4 * (kRowWords + 2 * kBlocks);
  constexpr int kWeightBytes = kPasses * Weights::kBytes, kStageBytes = (kWeightBytes + 2 * kRowBytes + 15) / 16 * 16;
  __shared__ PairChoices choices;
  __shared__ __align__(16) float scratch[kPlanes][64];
  __shared__ float result[R][kPlanes][kFeatures], weights[R][kTop];
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  uint8_t* stages = shared + 4 * Packed<STRATA_DOWN>::kTableWords + warp_id() * 2 * kStageBytes;
  const int plane = warp_id(), lane = lane_id(), first = blockIdx.x * kFeatures;
  trace(0);
  Packed<STRATA_DOWN>::template fill<1>(table);
  choices.clear();
  dependency_settled();
  const int rows = min(*live, R);
  if (rows <= 0) return dependency_wait();
  __syncthreads();
  for (int row = plane; row < rows; row += kPlanes) {
    const Choice c = choose_experts<STRATA_EXPERTS>(logits + row * STRATA_EXPERTS, STRATA_EXPERTS, kTop, STRATA_RENORMALISE,
                                                    reinterpret_cast<uint32_t*>(scratch[plane]));
    if (lane < kTop) weights[row][lane] = c.weight[0];
    choices.put(row, c.id[0]);
  }
  __syncthreads();
  choices.close(rows);
  __syncthreads();
  const int items = plane < kTop ? choices.size : 0;
  const auto copy_weights = [&](int item, uint8_t* to) {
    if (item < items) {
      const uint8_t* w = reinterpret_cast<const uint8_t*>(down[choices.items[item] & 0xffffu]);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) Weights(to + pass * Weights::kBytes).copy(w, kHidden, first + pass * kPerWarp);
    }
  };
  // The inner rows of an item, as staged_rows has them.
  const auto copy_rows = [&](int item, uint8_t* to) {
    uint32_t left = item < items ? choices.items[item] >> 16 : 0;
    for (int m = 0; left != 0; ++m) {
      const int row = take_bit(left), pair = row * kTop + choices.rank_of(row, static_cast<int>(choices.items[item] & 0xffffu));
      const StagedRows a = staged_rows<2, kInnerSegs>(to, kInner);
      const int8_t* q = inner + static_cast<size_t>(pair) * kInner;
      for (int i = lane; i < kInner / 16; i += 32)
        copy_async<16>(a.codes + m * kRowWords + 4 * i + kSegmentPad * (((i / 2 + 1) * kInnerSegs - 1) / kBlocks), q + 16 * i);
      for (int b = lane; b < kBlocks; b += 32) {
        copy_async<4>(a.scales + m * kBlocks + b, inner_d + pair * kBlocks + b);
        copy_async<4>(a.sums + m * kBlocks + b, inner_sums + 2 * (pair * kBlocks + b));
      }
    }
  };
#pragma unroll
  for (int s = 0; s < 2; ++s) copy_weights(plane + s * kTop, stages + s * kStageBytes), copies_group();
  const auto row_of = [&](int pass) { return min(first + pass * kPerWarp + lane / kInnerSegs, kHidden - 1); };
#ifdef STRATA_SHARED
  const StagedRows shared_rows = staged_rows<R, kInnerSegs>(shared + 4 * Packed<STRATA_DOWN>::kTableWords + kTop * 2 * kStageBytes, kInner);
  using SharedChain = SegmentChain<STRATA_SHARED, kSharedRows, kInnerSegs, STRATA_INNER_AHEAD, STRATA_INNER_LENGTH>;
  SharedChain shared_chain(shared_down, kHidden, kBlocks, row_of(0));
  if (plane == kTop) shared_chain.load_first();
#endif
  ask_ahead(ahead, ahead_bytes);
  using Writer = StreamWriter<STRATA_STREAMS, kFeatures>;
  Writer writer(residual, inject, out, kHidden);
  if (plane < rows) writer.load(plane, 1, first, kFeatures);
#ifdef STRATA_SHARED
  for (int i = plane; i < rows * kBlocks; i += kPlanes) {  // the shared expert's inner rows
    const int row = i / kBlocks, b = i % kBlocks, segment = ((b + 1) * kInnerSegs - 1) / kBlocks;
    const size_t at = static_cast<size_t>(row) * kInner + b * 32 + lane;
    const float v = silu32(shared_gate[at]) * shared_up[at];
    if (!finite32(v)) report(faults, kFaultNonFinite);
    quantize_block(v, reinterpret_cast<int8_t*>(shared_rows.codes + row * kRowWords + 8 * b + kSegmentPad * segment), shared_rows.scales + i,
                   reinterpret_cast<int16_t*>(shared_rows.sums + i));
  }
#endif
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
#pragma unroll
  for (int s = 0; s < 2; ++s) copy_rows(plane + s * kTop, stages + s * kStageBytes + kWeightBytes), copies_group();
  __syncthreads();  // the table, and the shared expert's rows
  trace(3);
#ifdef STRATA_SHARED
  if (plane == kTop) {  // before the others' loop, so that they do not hold its registers
#pragma unroll 1
    for (int turn = 0; turn < kPasses * (R / kSharedRows); ++turn) {
      const int pass = turn % kPasses, row0 = turn / kPasses * kSharedRows;
      if (turn > 0) shared_chain.row = row_of(pass), shared_chain.load_first();
      float y[kSharedRows];
      shared_chain.run(nullptr, {shared_rows.codes + row0 * kRowWords, shared_rows.scales + row0 * kBlocks, shared_rows.sums + row0 * kBlocks,
                                 kRowWords, kBlocks}, y);
      for (int m = 0; m < min(rows - row0, kSharedRows); ++m) {
        float one[1] = {0.0f};
#pragma unroll
        for (int i = 0; i < kSharedRows; ++i) one[0] = i == m ? y[i] : one[0];
        add_segments<1, kInnerSegs>(one, scratch[plane], [&](int r, int, float total) { result[row0 + m][kTop][pass * kPerWarp + r] = total; });
      }
    }
  }
#endif
  int slot = 0;
#pragma unroll 1
  for (int item = plane; item < items; item += kTop, slot ^= 1) {
    uint8_t* stage = stages + slot * kStageBytes;
    const int expert = static_cast<int>(choices.items[item] & 0xffffu);
    uint32_t left = choices.items[item] >> 16;
    const int r0 = take_bit(left), r1 = left == 0 ? r0 : take_bit(left);
    const int rank0 = choices.rank_of(r0, expert), rank1 = choices.rank_of(r1, expert);
    const float scale = down_scale ? down_scale[expert] : 1.0f;
    const StagedRows a = staged_rows<2, kInnerSegs>(stage + kWeightBytes, kInner);
    copies_wait_for_groups<1>();
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto store = [&](int r, int m, float total) {
        result[m == 0 ? r0 : r1][m == 0 ? rank0 : rank1][pass * kPerWarp + r] = total * scale;
      };
      uint8_t* at = stage + pass * Weights::kBytes;
      if (r0 == r1) {
        float y[1];
        StagedChain<STRATA_DOWN, 1, kInnerSegs, STRATA_INNER_LENGTH>(at).chain(table, a, y);
        add_segments<1, kInnerSegs>(y, scratch[plane], store);
      } else {
        float y[2];
        StagedChain<STRATA_DOWN, 2, kInnerSegs, STRATA_INNER_LENGTH>(at).chain(table, a, y);
        add_segments<2, kInnerSegs>(y, scratch[plane], store);
      }
    }
#if STRATA_TAKE_LATE
    take_late_row(*tier, expert, r0 * kTop + rank0, kHidden, first, kFeatures, result[r0][rank0], faults);
    if (r0 != r1) take_late_row(*tier, expert, r1 * kTop + rank1, kHidden, first, kFeatures, result[r1][rank1], faults);
#endif
    __syncwarp();
    copy_weights(item + 2 * kTop, stage), copy_rows(item + 2 * kTop, stage + kWeightBytes), copies_group();
  }
  copies_wait();
  trace(5);
  __syncthreads();
  trace(6);
  for (int row = plane; row < rows; row += kPlanes) {
    if (row >= kPlanes) writer.load(row, 1, first, kFeatures);
    writer.store(row, 1, first, kFeatures, [&](int r, int) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < kTop; ++i) total = combine_step(weights[row][i], result[row][i][r], total);
#ifdef STRATA_SHARED
      total = fma32(sigmoid32(shared_logit[row]), result[row][kTop][r], total);
#endif
      return total;
    });
  }
  trace(7);
}

}  // extern "C"
