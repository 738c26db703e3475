// sample: one token id a row, in three nodes: z and its largest; distances from it and the race over all ids; top_k and top_p
// where they are asked for, and the log-probability.
#include "sample.cuh"

using namespace strata;

namespace {

struct Planes {
  const float* logits;
  const int* positions;
  const SampleParams* params;
  const int* counts;
  const uint32_t* masks;
  const int* bias_ids;
  const float* bias_values;
};

__device__ __forceinline__ SampleRowInputs row_inputs(const Planes& in, int r, int vocab) {
  SampleRowInputs row;
  row.p = in.params[r];
  row.logits = in.logits + static_cast<size_t>(r) * vocab;
  row.counts = row.p.count_slot < 0 ? nullptr : in.counts + static_cast<size_t>(row.p.count_slot) * vocab;
  row.mask = row.p.mask_id < 0 ? nullptr : in.masks + static_cast<size_t>(row.p.mask_id) * ((vocab + 31) / 32);
  row.bias_ids = in.bias_ids + row.p.bias_begin, row.bias_values = in.bias_values + row.p.bias_begin;
  row.position = static_cast<uint64_t>(in.positions[r]) + 1;
  row.vocab = vocab;
  return row;
}

#define STRATA_PLANES \
  const int *live, const float *logits, const int *positions, const SampleParams *params, const int *counts, const uint32_t *masks, \
      const int *bias_ids, const float *bias_values, float *distance, float *sums, float *cooled_sums, RowState *states, \
      uint32_t *faults, int *out_ids, float *out_logprob, int vocab
#define STRATA_PLANES_OF {logits, positions, params, counts, masks, bias_ids, bias_values}

}  // namespace

// Grid (chunks of kSampleChunk ids, rows): distance[r][id] = z, and the row's largest.
extern "C" __global__ void __launch_bounds__(256) sample_scores(STRATA_PLANES) {
  __shared__ float z[kSampleChunk];
  __shared__ uint32_t best;
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.y, first = blockIdx.x * kSampleChunk, n = min(kSampleChunk, vocab - first);
  if (r >= *live) return;
  const SampleRowInputs row = row_inputs(STRATA_PLANES_OF, r, vocab);
  if (threadIdx.x == 0) best = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) z[i] = row.penalised_value(row.logits[first + i], first + i);
  __syncthreads();
  bool outside = false;
  for (int j = threadIdx.x; j < row.p.bias_count; j += blockDim.x) {
    const int id = row.bias_ids[j];
    outside |= id < 0 || id >= vocab;
    if (id >= first && id < first + n) z[id - first] = row.penalised_value(row.logits[id] + row.bias_values[j], id);
  }
  __syncthreads();
  bool finite = true;
  uint32_t most = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float x = z[i];
    finite &= finite32(x);
    if (row.mask != nullptr && (row.mask[(first + i) / 32] >> (first + i) % 32 & 1u) == 0) x = bits_float(0xff800000u);
    most = max(most, ordered_bits(x));
    distance[static_cast<size_t>(r) * vocab + first + i] = x;
  }
  atomicMax(&best, most);
  if (outside) atomicOr(&states[r].faults, 1u << kFaultRange);
  if (!finite) atomicOr(&states[r].faults, 1u << kFaultNonFinite);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&states[r].best, best);
}

// Lane sum of a piece, by one warp; the result is in every lane.
__device__ __forceinline__ float piece_sum(const float* x) {
  float sum = 0.0f;
#pragma unroll 16
  for (int i = lane_id(); i < kSampleChunk; i += 32) sum += x[i];
  return warp_tree_sum(sum);
}

// The same grid: distance = (best - z) / temperature, the choice where nothing is sorted, and the piece's part of the sums (docs/sampling.md):
// of exp32(z - best) and, where top_p asks for it, of exp32(-distance).
extern "C" __global__ void __launch_bounds__(256) sample_distances(STRATA_PLANES) {
  __shared__ unsigned long long best_choice;
  __shared__ float weight[kSampleChunk], cooled_weight[kSampleChunk];
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.y, first = blockIdx.x * kSampleChunk;
  if (r >= *live) return;
  const SampleRowInputs row = row_inputs(STRATA_PLANES_OF, r, vocab);
  const float best = from_ordered(states[r].best), temperature = row.p.temperature;
  const bool sorted = row.sorted(), cooled = sorted && row.p.top_k <= 0;
  if (threadIdx.x == 0) best_choice = 0;
  __syncthreads();
  unsigned long long choice = 0;
  float* d = distance + static_cast<size_t>(r) * vocab;
  for (int quad = first + 4 * threadIdx.x; quad < first + kSampleChunk; quad += 4 * blockDim.x) {
    uint32_t words[4];
    if (temperature > 0.0f && !sorted) philox(row.p.seed, row.position, static_cast<uint64_t>(quad) / 4, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int id = quad + i;
      weight[id - first] = cooled_weight[id - first] = 0.0f;
      if (id >= vocab) continue;
      float x = best - d[id];
      weight[id - first] = exp32(-x);
      if (temperature > 0.0f) {
        x = div32(x, temperature);
        d[id] = x;
        if (cooled) cooled_weight[id - first] = exp32(-x);
        if (!sorted && exp32(-x) >= row.p.min_p) choice = max(choice, static_cast<unsigned long long>(choice_key(gumbel32(words[i]) - x, id)));
      } else if (x == 0.0f) {
        choice = max(choice, static_cast<unsigned long long>(choice_key(0.0f, id)));
      }
    }
  }
  if (!sorted) atomicMax(&best_choice, choice);
  __syncthreads();
  if (threadIdx.x == 0 && !sorted) atomicMax(&states[r].choice, best_choice);
  const int warp = warp_id(), place = r * gridDim.x + blockIdx.x;
  if (warp > (cooled ? 1 : 0)) return;
  const float sum = piece_sum(warp == 0 ? weight : cooled_weight);
  if (lane_id() == 0) (warp == 0 ? sums : cooled_sums)[place] = sum;
}

namespace {

// Lane sum of the pieces' sums, by the first warp; the result is in its every lane.
__device__ __forceinline__ float total_of(const float* sums, int pieces) {
  float total = 0.0f;
  if (warp_id() > 0) return total;
  for (int i = lane_id(); i < pieces; i += 32) total += sums[i];
  return warp_tree_sum(total);
}

__device__ __forceinline__ float penalised_logit(const SampleRowInputs& row, int id) {
  float z = row.logits[id];
  for (int j = 0; j < row.p.bias_count; ++j)
    if (row.bias_ids[j] == id) z += row.bias_values[j];
  return row.penalised_value(z, id);
}

// The walk that top_k and top_p ask for; c.best is the choice.
__device__ __forceinline__ void choose_sorted(Candidates& c, const SampleRowInputs& row, const float* d, const float* cooled_sums, int pieces) {
  const int most = row.p.top_k > 0 ? row.p.top_k : row.vocab;
  float target = bits_float(0x7f800000u);
  if (row.p.top_p < 1.0f) {
    if (row.p.top_k > 0) {
      walk(c, row, d, most, target, false);
      if (threadIdx.x == 0) c.total = c.sum;
    } else {
      const float sum = total_of(cooled_sums, pieces);
      if (threadIdx.x == 0) c.total = sum;
    }
    __syncthreads();
    target = row.p.top_p * c.total;
  }
  if (threadIdx.x == 0) c.best = 0;
  walk(c, row, d, most, target, true);
}

}  // namespace

// A thread block a row.
extern "C" __global__ void __launch_bounds__(1024) sample_choose(STRATA_PLANES) {
  __shared__ Candidates c;
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.x;
  if (r >= *live) return;
  const SampleRowInputs row = row_inputs(STRATA_PLANES_OF, r, vocab);
  RowState state = states[r];
  __syncthreads();
  if (threadIdx.x == 0) states[r] = {0, 0, 0};
  const float best = from_ordered(state.best);
  if (float_bits(best) == 0xff800000u) state.faults |= 1u << kFaultNoToken;
  if (state.faults != 0) {
    if (threadIdx.x != 0) return;
    const FaultIndex first = state.faults >> kFaultRange & 1u       ? kFaultRange
                             : state.faults >> kFaultNonFinite & 1u ? kFaultNonFinite
                                                                    : kFaultNoToken;
    report(faults, first);
    out_ids[r] = -1;
    out_logprob[r] = 0.0f;
    return;
  }
  const size_t at = static_cast<size_t>(r) * vocab;
  const int pieces = (vocab + kSampleChunk - 1) / kSampleChunk;
  if (row.sorted()) {
    choose_sorted(c, row, distance + at, cooled_sums + r * pieces, pieces);
    state.choice = c.best;
  }
  const float log_total = log32(total_of(sums + r * pieces, pieces));
  if (threadIdx.x != 0) return;
  const int id = static_cast<int>(topk_index(state.choice));
  out_ids[r] = id;
  out_logprob[r] = ((penalised_logit(row, id) - best) + 0.0f) - log_total;  // best lost the sign of a zero
}
