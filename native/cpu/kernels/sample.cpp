// sample: one token id a row from logits, by the rules of docs/sampling.md.
// ptr: n_rows, logits f32 [R, vocab], positions i32 [R], params [R], counts i32 [slots, vocab],
//      masks u32 [n, ceil(vocab / 32)], bias_ids, bias_values, out_ids i32 [R], out_logprob f32 [R]; dim: vocab.
//
// Inside a row everything is held as d = (best - z) / temperature >= 0: its bits order candidates, best first, and no
// temperature overflows. Ids past the vocabulary and masked ones have d = infinity and probability 0.
#include <cstdlib>

#include "cpu/kernels/kernel.h"
#include "strata/sample.h"

namespace strata::STRATA_LEVEL {

namespace {

constexpr int kTile = 128;          // ids handled together; a tile's smallest d lets whole tiles be skipped
constexpr int64_t kFirstTry = 512;  // candidates sorted before all are
constexpr uint32_t kInfinity = 0x7f800000u;

// A worker's memory, kept from step to step: d, the smallest d of each tile, and candidates (two, for the sort).
struct Scratch {
  float* d = nullptr;
  float* low = nullptr;
  uint64_t *keys = nullptr, *spare = nullptr;
  int64_t tiles = 0;

  ~Scratch() { std::free(d); }
  bool reserve(int64_t wanted) {
    if (wanted <= tiles) return true;
    std::free(d);
    tiles = 0;
    const size_t n = static_cast<size_t>(wanted) * kTile;
    d = static_cast<float*>(std::aligned_alloc(64, n * 20 + (static_cast<size_t>(wanted) * 4 + 63) / 64 * 64));
    if (d == nullptr) return false;
    keys = reinterpret_cast<uint64_t*>(d + n);
    spare = keys + n;
    low = reinterpret_cast<float*>(spare + n);
    tiles = wanted;
    return true;
  }
};

thread_local Scratch scratch;

struct Row {
  const SampleParams& p;
  const float* logits;
  const int32_t* counts;  // or null
  const uint32_t* mask;   // or null
  const int32_t* bias_ids;
  const float* bias_values;
  uint64_t position;  // of the token being sampled
  int64_t vocab, tiles;
};

struct Choice {
  int32_t id;
  float score;
};

uint64_t key_of(float d, int64_t id) { return static_cast<uint64_t>(float_bits(d)) << 32 | static_cast<uint32_t>(id); }
float key_distance(uint64_t key) { return bits_float(static_cast<uint32_t>(key >> 32)); }

// z[tiles * kTile]: logits with bias and penalties, infinities past the vocabulary.
void penalise_row(const Row& row, float* __restrict z) {
  const SampleParams p = row.p;
  const float* __restrict logits = row.logits;
  const int32_t* __restrict counts = row.counts;
  if (counts == nullptr)
    memcpy(z, logits, static_cast<size_t>(row.vocab) * sizeof(float));
  else
    for (int64_t i = 0; i < row.vocab; ++i) z[i] = penalise(logits[i], counts[i], p);
  for (int64_t i = row.vocab; i < row.tiles * kTile; ++i) z[i] = -bits_float(kInfinity);
  for (int j = p.bias_begin; j < p.bias_begin + p.bias_count; ++j) {
    const int32_t id = row.bias_ids[j];
    const float biased = logits[id] + row.bias_values[j];
    z[id] = counts == nullptr ? biased : penalise(biased, counts[id], p);
  }
}

bool all_finite(const float* z, int64_t n) {
  uint32_t worst[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      const uint32_t a = float_bits(z[i + j]) & 0x7fffffffu;
      worst[j] = a > worst[j] ? a : worst[j];
    }
  for (; i < n; ++i)
    if ((float_bits(z[i]) & 0x7fffffffu) >= kInfinity) return false;
  for (int j = 0; j < kLanes; ++j)
    if (worst[j] >= kInfinity) return false;
  return true;
}

void apply_mask(const uint32_t* __restrict mask, float* __restrict z, int64_t vocab) {
  for (int64_t i = 0; i < vocab; i += kLanes) {
    const uint32_t word = mask[i / kLanes];
    for (int j = 0; j < kLanes; ++j) z[i + j] = (word >> j & 1u) != 0 ? z[i + j] : -bits_float(kInfinity);
  }
}

float largest(const float* z, int64_t n) {
  float best[kLanes];
  for (int j = 0; j < kLanes; ++j) best[j] = z[j];
  for (int64_t i = kLanes; i < n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) best[j] = z[i + j] > best[j] ? z[i + j] : best[j];
  for (int j = 1; j < kLanes; ++j) best[0] = best[j] > best[0] ? best[j] : best[0];
  return best[0];
}

// Lane sum of the lane sums of pieces; piece(begin, end, acc) adds what it has to the lanes.
template <class Piece> float sum_of_pieces(int64_t n, Piece piece) {
  float total[kLanes] = {};
  for (int64_t begin = 0, p = 0; begin < n; begin += kSumPiece, ++p) {
    float acc[kLanes] = {};
    piece(begin, begin + kSumPiece < n ? begin + kSumPiece : n, acc);
    total[p % kLanes] += tree_sum(acc);
  }
  return tree_sum(total);
}

// Turns z into distances from the best (before the temperature) and returns sum(exp(-distance)).
float to_distances(float* __restrict z, int64_t n, float best) {
  return sum_of_pieces(n, [=](int64_t begin, int64_t end, float* __restrict acc) {
    for (int64_t i = begin; i < end; i += kLanes)
      for (int j = 0; j < kLanes; ++j) {
        z[i + j] = best - z[i + j];
        acc[j] += exp32(-z[i + j]);
      }
  });
}

float sum_exp(const float* __restrict d, int64_t n) {
  return sum_of_pieces(n, [=](int64_t begin, int64_t end, float* __restrict acc) {
    for (int64_t i = begin; i < end; i += kLanes)
      for (int j = 0; j < kLanes; ++j) acc[j] += exp32(-d[i + j]);
  });
}

// Divides by the temperature; low[t] is the smallest d of tile t.
void cool(float* __restrict d, float* __restrict low, int64_t tiles, float temperature) {
  for (int64_t t = 0; t < tiles; ++t, d += kTile) {
    float least[kLanes];
    for (int j = 0; j < kLanes; ++j) least[j] = bits_float(kInfinity);
    for (int i = 0; i < kTile; i += kLanes)
      for (int j = 0; j < kLanes; ++j) {
        d[i + j] = div32(d[i + j], temperature);
        least[j] = d[i + j] < least[j] ? d[i + j] : least[j];
      }
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) least[j] = least[j + half] < least[j] ? least[j + half] : least[j];
    low[t] = least[0];
  }
}

int32_t first_zero(const float* d, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int any = 0;
    for (int j = 0; j < kLanes; ++j) any |= d[i + j] == 0.0f;
    for (int j = 0; any != 0 && j < kLanes; ++j)
      if (d[i + j] == 0.0f) return static_cast<int32_t>(i + j);
  }
  return -1;
}

// Sorts by d, equal ones in the order they come in (ascending id): radix sort, eight bits of d at a time.
void sort_keys(uint64_t* keys, uint64_t* spare, int64_t n) {
  if (n <= 64) {
    for (int64_t i = 1; i < n; ++i) {
      const uint64_t key = keys[i];
      int64_t j = i;
      for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
      keys[j] = key;
    }
    return;
  }
  int32_t start[4][256] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int b = 0; b < 4; ++b) ++start[b][keys[i] >> (32 + 8 * b) & 255u];
  for (int b = 0; b < 4; ++b) {
    int32_t sum = 0;
    for (int32_t& s : start[b]) {
      const int32_t count = s;
      s = sum;
      sum += count;
    }
    for (int64_t i = 0; i < n; ++i) spare[start[b][keys[i] >> (32 + 8 * b) & 255u]++] = keys[i];
    uint64_t* const other = keys;
    keys = spare;
    spare = other;
  }
}

// A distance that at least n candidates do not exceed: the n-th smallest of the tiles' smallest.
float reach_of(const Row& row, int64_t n) {
  if (n >= row.tiles) return kSampleReach;
  for (int64_t t = 0; t < row.tiles; ++t) scratch.keys[t] = key_of(scratch.low[t], t);
  sort_keys(scratch.keys, scratch.spare, row.tiles);
  const float reach = key_distance(scratch.keys[n - 1]);
  return reach < kSampleReach ? reach : kSampleReach;
}

// Candidates with d <= reach, sorted into scratch.keys; returns how many.
int64_t collect(const Row& row, float reach) {
  int64_t n = 0;
  for (int64_t t = 0; t < row.tiles; ++t) {
    if (scratch.low[t] > reach) continue;
    for (int64_t i = t * kTile; i < (t + 1) * kTile; ++i) {
      scratch.keys[n] = key_of(scratch.d[i], i);
      n += scratch.d[i] <= reach;
    }
  }
  sort_keys(scratch.keys, scratch.spare, n);
  return n;
}

// Length of the shortest prefix of the sorted candidates whose sum of probabilities reaches target, or -1.
int64_t prefix_reaching(int64_t n, float target) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    sum += exp32(-key_distance(scratch.keys[i]));
    if (sum >= target) return i + 1;
  }
  return -1;
}

// Sorted candidates that top_k and top_p keep and that can still matter (within kSampleReach); returns how many.
int64_t cut(const Row& row) {
  const SampleParams& p = row.p;
  if (p.top_k > 0) {
    int64_t n = collect(row, reach_of(row, p.top_k));
    if (n > p.top_k) n = p.top_k;
    if (!(p.top_p < 1.0f)) return n;
    float total = 0.0f;
    for (int64_t i = 0; i < n; ++i) total += exp32(-key_distance(scratch.keys[i]));
    return prefix_reaching(n, p.top_p * total);
  }
  const float target = p.top_p * sum_exp(scratch.d, row.tiles * kTile);
  const int64_t few = prefix_reaching(collect(row, reach_of(row, kFirstTry)), target);
  if (few > 0) return few;
  const int64_t n = collect(row, kSampleReach), kept = prefix_reaching(n, target);
  return kept > 0 ? kept : n;
}

void prefer(Choice& best, int32_t id, float score) {
  if (score > best.score || (score == best.score && id < best.id)) best = {id, score};
}

float gumbel_of(const Row& row, int32_t id) {
  uint32_t words[4];
  philox(row.p.seed, row.position, static_cast<uint64_t>(id) / 4, words);
  return gumbel32(words[id % 4]);
}

// Gumbel numbers of a tile's ids: philox (contract.h) on kTile / 4 counters side by side, for the vectoriser.
void gumbel_tile(const Row& row, int64_t first, float* __restrict g) {
  constexpr int n = kTile / 4;
  uint32_t k0 = static_cast<uint32_t>(row.p.seed), k1 = static_cast<uint32_t>(row.p.seed >> 32);
  uint32_t c[4][n];
  for (int i = 0; i < n; ++i) {
    const uint64_t quad = static_cast<uint64_t>(first) / 4 + i;
    c[0][i] = static_cast<uint32_t>(row.position), c[1][i] = static_cast<uint32_t>(row.position >> 32);
    c[2][i] = static_cast<uint32_t>(quad), c[3][i] = static_cast<uint32_t>(quad >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < n; ++i) {
      const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0][i], p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2][i];
      c[0][i] = static_cast<uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[2][i] = static_cast<uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[1][i] = static_cast<uint32_t>(p1);
      c[3][i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < n; ++i)
    for (int w = 0; w < 4; ++w) g[4 * i + w] = gumbel32(c[w][i]);
}

// Largest gumbel - d over the first n sorted candidates; a candidate that no gumbel could lift past the best ends it.
Choice race_sorted(const Row& row, int64_t n) {
  Choice best = {-1, -bits_float(kInfinity)};
  for (int64_t i = 0; i < n; ++i) {
    const float d = key_distance(scratch.keys[i]);
    if (kGumbelMax - d < best.score) break;
    if (exp32(-d) < row.p.min_p) continue;
    const int32_t id = static_cast<int32_t>(scratch.keys[i]);
    prefer(best, id, gumbel_of(row, id) - d);
  }
  return best;
}

// The same over all ids, tile by tile.
Choice race_all(const Row& row, int32_t top) {
  Choice best = {top, gumbel_of(row, top)};
  float g[kTile];
  for (int64_t t = 0; t < row.tiles; ++t) {
    if (kGumbelMax - scratch.low[t] < best.score) continue;
    gumbel_tile(row, t * kTile, g);
    const float* d = scratch.d + t * kTile;
    for (int i = 0; i < kTile; ++i) {
      const float score = g[i] - d[i];
      if (score >= best.score && exp32(-d[i]) >= row.p.min_p) prefer(best, static_cast<int32_t>(t * kTile + i), score);
    }
  }
  return best;
}

// Logit of one id with bias and penalties.
float penalised(const Row& row, int32_t id) {
  float z = row.logits[id];
  for (int j = row.p.bias_begin; j < row.p.bias_begin + row.p.bias_count; ++j)
    if (row.bias_ids[j] == id) z += row.bias_values[j];
  return row.counts == nullptr ? z : penalise(z, row.counts[id], row.p);
}

// Chooses the row's token and its log-probability; returns 0 or a fault.
uint32_t sample_row(const Row& row, int32_t* out_id, float* out_logprob) {
  for (int j = row.p.bias_begin; j < row.p.bias_begin + row.p.bias_count; ++j)
    if (row.bias_ids[j] < 0 || row.bias_ids[j] >= row.vocab) return kFaultRange;
  if (!scratch.reserve(row.tiles)) return kFaultRange;
  const int64_t n = row.tiles * kTile;
  float* const d = scratch.d;
  penalise_row(row, d);
  if (!all_finite(d, row.vocab)) return kFaultNonFinite;
  if (row.mask != nullptr) apply_mask(row.mask, d, row.vocab);
  const float best = largest(d, n);
  if (float_bits(best) == (kInfinity | 0x80000000u)) return kFaultNoToken;
  const float log_total = log32(to_distances(d, n, best + 0.0f));  // from -0, +0 would lie at -0, the largest key
  int32_t id = first_zero(d, n);
  if (row.p.temperature > 0.0f) {
    const bool sorted = row.p.top_k > 0 || row.p.top_p < 1.0f;
    cool(d, scratch.low, row.tiles, row.p.temperature);
    id = (sorted ? race_sorted(row, cut(row)) : race_all(row, first_zero(d, n))).id;
  }
  *out_id = id;
  *out_logprob = (penalised(row, id) - best) - log_total;
  return 0;
}

}  // namespace

void sample(const Op& op, int thread, int threads) {
  const int64_t vocab = op.dim[0], words = (vocab + 31) / 32;
  int32_t* const out_id = op.at<int32_t>(8);
  float* const out_logprob = op.at<float>(9);
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const SampleParams& p = op.at<const SampleParams>(3)[r];
    const Row row = {
        p,
        op.at<const float>(1) + r * vocab,
        p.count_slot < 0 ? nullptr : op.at<const int32_t>(4) + p.count_slot * vocab,
        p.mask_id < 0 ? nullptr : op.at<const uint32_t>(5) + p.mask_id * words,
        op.at<const int32_t>(6),
        op.at<const float>(7),
        static_cast<uint64_t>(op.at<const int32_t>(2)[r]) + 1,
        vocab,
        (vocab + kTile - 1) / kTile,
    };
    out_id[r] = -1;
    out_logprob[r] = 0.0f;
    const uint32_t fault = sample_row(row, out_id + r, out_logprob + r);
    if (fault != 0) op.fault(static_cast<Fault>(fault));
  }
}

}  // namespace strata::STRATA_LEVEL
