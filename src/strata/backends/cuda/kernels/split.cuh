// One split of 256 cells for up to H query heads of a KV head, D values a head, step form (contract.h), by 256 threads.
//
// Scores: four threads a cell (lanes.cuh), all its keys loaded before the first is used. Values: a thread holds eight neighbouring
// values of kHeld of the 32 lanes (lane = cell mod 32), so that a cell's values are read once for all heads; lanes meet in shared
// memory.
#pragma once

#include "kv.cuh"
#include "lanes.cuh"

namespace strata {

constexpr int kSplitThreads = 256;

// Eight neighbouring values as the pool stores them: values [i, i + 8) of the head whose first is value `row` of the pool.
template <int Kv> struct StoredEight {
  float4 low, high;
  __device__ __forceinline__ void load(const void* pool, const unsigned short*, size_t row, int i, int) {
    low = *reinterpret_cast<const float4*>(static_cast<const float*>(pool) + row + i);
    high = *(reinterpret_cast<const float4*>(static_cast<const float*>(pool) + row + i) + 1);
  }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  }
};

template <> struct StoredEight<kKvF16> {
  uint4 raw;
  __device__ __forceinline__ void load(const void* pool, const unsigned short*, size_t row, int i, int) {
    raw = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(pool) + row + i);
  }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = half_float(static_cast<uint16_t>(word[i]));
      v[2 * i + 1] = half_float(static_cast<uint16_t>(word[i] >> 16));
    }
  }
};

template <> struct StoredEight<kKvInt8> {
  uint2 raw;
  unsigned short scale;
  __device__ __forceinline__ void load(const void* pool, const unsigned short* scales, size_t row, int i, int group) {
    raw = *reinterpret_cast<const uint2*>(static_cast<const int8_t*>(pool) + row + i);
    scale = scales[(row + i) / group];
  }
  // A byte b + 128 in the lowest bits of 2^23 is the float 2^23 + 128 + b: no conversion, which is slow.
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    const float d = half_float(scale);
    const uint32_t word[2] = {raw.x ^ 0x80808080u, raw.y ^ 0x80808080u};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = (bits_float(__byte_perm(word[i / 4], 0x4b000000u, 0x7440u + i % 4)) - 8388736.0f) * d;
  }
};

// A byte holds two codes half a group apart. Twice a code in the lowest bits of 2^23, as above.
template <> struct StoredEight<kKvNibbles> {
  uint2 raw;
  unsigned short scale;
  bool upper;  // the upper halves of the bytes
  __device__ __forceinline__ void load(const void* pool, const unsigned short* scales, size_t row, int i, int group) {
    const int half = group / 2, place = i % group;
    const uint8_t* bytes = static_cast<const uint8_t*>(pool) + (row + i - place) / 2 + place % half;
    scale = scales[(row + i) / group], upper = place >= half;
    if (half >= 8) {
      raw = *reinterpret_cast<const uint2*>(bytes);
    } else {  // groups of eight
      raw.x = *reinterpret_cast<const uint32_t*>(bytes), raw.y = raw.x >> 4;
    }
  }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
    const float d = half_float(scale);
    const uint32_t word[2] = {(upper ? raw.x >> 3 : raw.x << 1) & 0x1e1e1e1eu, (upper ? raw.y >> 3 : raw.y << 1) & 0x1e1e1e1eu};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = (bits_float(__byte_perm(word[i / 4], 0x4b000000u, 0x7440u + i % 4)) - 8388623.0f) * d;
  }
};

constexpr int power_of_two_below(int n) { return n < 2 ? 1 : 2 * power_of_two_below(n / 2); }

// Kk, Kv: how the pools hold keys and values. Slots: cells may lie in slots instead (KvSlots).
template <int Kk, int Kv, int H, int D, bool Slots = false> struct Split {
  static constexpr int kParts = D / 8;                         // threads over a cell's values
  static constexpr int kSets = kSplitThreads / kParts < 32 ? power_of_two_below(kSplitThreads / kParts) : 32;
  static constexpr int kHeld = kLanes / kSets;                 // lanes of a thread
  static constexpr int kTurns = kAttentionSplit / kSets;       // cells of a thread
  static constexpr int kBatch = Kv >= kKvInt8 || kHeld > 4 ? 8 : 4;  // of them loaded at a time, all held lanes the same number of times
  static constexpr int kSteps = (D + 31) / 32;
  static constexpr int kCells = (Kk >= kKvInt8 && D <= 128) || (Kk == kKvF16 && D < 128) ? 2 : 1;  // a thread's keys in flight
  static constexpr int kGroup = D < kKvGroup ? D : kKvGroup;
  static_assert(D % 8 == 0 && kBatch <= kTurns);

  // Shared memory.
  struct Room {
    alignas(16) float query[H][D];
    alignas(16) float weight[kAttentionSplit][H];  // scores, then weights
    alignas(16) float lanes[kSets][H][D];
    int cell[kAttentionSplit];  // (page * kv_heads + kv_head) * 64 + cell in the page; any valid one where none is seen. In slots:
                                // ~((slot * kv_heads + kv_head) * ratio + cell in the group)
    float top[H], sum[H];
  };

  Room& s;
  const void *k, *v;
  const unsigned short *k_scales, *v_scales;
  int begin, end;  // cells that are seen
  KvSlots slots;
  StoredEight<Kv> values[kBatch];

  __device__ __forceinline__ void scores(float scale) {
    const int j = threadIdx.x % 4, own = threadIdx.x / 4;
#pragma unroll 1
    for (int c0 = begin / 64 * 64; c0 < end; c0 += 64 * kCells) {
      StoredEight<Kk> key[kCells][kSteps];
#pragma unroll
      for (int n = 0; n < kCells; ++n) {
        const int c = c0 + 64 * n + own;
        if (c >= kAttentionSplit || c0 + 64 * n >= end) break;
        const int cell = s.cell[c];
        const bool slot = Slots && cell < 0;
        const size_t row = static_cast<size_t>(slot ? ~cell : cell) * D;
#pragma unroll
        for (int i = 0; i < kSteps; ++i)
          if (8 * j + 32 * i < D) key[n][i].load(slot ? slots.k : k, slot ? slots.k_scales : k_scales, row, 8 * j + 32 * i, kGroup);
      }
#pragma unroll
      for (int n = 0; n < kCells; n += kCells > 1 ? 2 : 1)
        if (c0 + 64 * n < end) pair_scores<kCells != 1>(key, n, c0 + 64 * n + own, j, scale);
    }
    __syncthreads();
  }

  // Scores become weights; cells outside [begin, end) weigh nothing and are not read.
  __device__ __forceinline__ void softmax(int heads) {
    for (int h = warp_id(); h < heads; h += kSplitThreads / 32) {
      float x[kAttentionSplit / 32], most = bits_float(0xff800000u), sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kAttentionSplit / 32; ++i) {
        const int c = lane_id() + 32 * i;
        x[i] = c >= begin && c < end ? s.weight[c][h] : bits_float(0xff800000u);
        most = fmaxf(most, x[i]);
      }
      most = warp_max(most);
#pragma unroll
      for (int i = 0; i < kAttentionSplit / 32; ++i) {
        const int c = lane_id() + 32 * i;
        if (c < begin || c >= end) continue;
        const float p = exp32(x[i] - most);
        s.weight[c][h] = p;
        sum += p;
      }
      sum = warp_tree_sum(sum);
      if (lane_id() == 0) s.top[h] = most, s.sum[h] = sum;
    }
    __syncthreads();
  }

  // The first values of this thread; may come before their weights are known.
  __device__ __forceinline__ void load_values() { load_batch(0); }

  // Hands (head, value, sum) to `store`; what lies in `lanes` may be used again after a barrier.
  template <class Store> __device__ __forceinline__ void value_sums(int heads, Store store) {
    const int set = threadIdx.x / kParts, part = threadIdx.x % kParts;
    float acc[kHeld][H][8] = {};
    if (set < kSets) {
#pragma unroll 1
      for (int t0 = 0; t0 < kTurns && kSets * t0 < end; t0 += kBatch) {
        if (t0 > 0) load_batch(t0);
#pragma unroll
        for (int t = 0; t < kBatch; ++t) {
          const int c = set + kSets * (t0 + t);
          if (c < begin || c >= end) continue;
          float x[8];
          values[t].floats(x);
#pragma unroll
          for (int h = 0; h < H; ++h) {
            const float p = s.weight[c][h];
#pragma unroll
            for (int e = 0; e < 8; ++e) acc[t % kHeld][h][e] = fma32(p, x[e], acc[t % kHeld][h][e]);
          }
        }
      }
#pragma unroll
      for (int half = kHeld / 2; half > 0; half /= 2)
#pragma unroll
        for (int l = 0; l < half; ++l)
#pragma unroll
          for (int h = 0; h < H; ++h)
#pragma unroll
            for (int e = 0; e < 8; ++e) acc[l][h][e] = acc[l][h][e] + acc[l + half][h][e];
#pragma unroll
      for (int h = 0; h < H; ++h) {
        float4* to = reinterpret_cast<float4*>(&s.lanes[set][h][8 * part]);
        to[0] = {acc[0][h][0], acc[0][h][1], acc[0][h][2], acc[0][h][3]};
        to[1] = {acc[0][h][4], acc[0][h][5], acc[0][h][6], acc[0][h][7]};
      }
    }
    __syncthreads();
    for (int u = threadIdx.x; u < heads * D; u += kSplitThreads) {
      float x[kSets];
#pragma unroll
      for (int i = 0; i < kSets; ++i) x[i] = s.lanes[i][u / D][u % D];
      store(u / D, u % D, array_tree_sum(x));
    }
  }

 private:
  // Cells c and, with Two, c + 64, whose keys are key[n] and key[n + 1].
  template <bool Two>
  __device__ __forceinline__ void pair_scores(const StoredEight<Kk> (&key)[kCells][kSteps], int n, int c, int j, float scale) {
    constexpr int count = Two ? 2 : 1;
    float acc[count][H][8] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (D % 32 != 0 && 8 * j + 32 * i >= D) break;
      float x[count][8];
#pragma unroll
      for (int m = 0; m < count; ++m) key[n + m][i].floats(x[m]);
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const float4* q = reinterpret_cast<const float4*>(&s.query[h][8 * j + 32 * i]);
        const float4 a = q[0], b = q[1];
        const float y[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int m = 0; m < count; ++m)
#pragma unroll
          for (int e = 0; e < 8; ++e) acc[m][h][e] = fma32(x[m][e], y[e], acc[m][h][e]);
      }
    }
#pragma unroll
    for (int m = 0; m < count; ++m)
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const float dot = quad_tree_sum(acc[m][h]);
        if (j == 0 && c + 64 * m < kAttentionSplit) s.weight[c + 64 * m][h] = dot * scale;
      }
  }

  __device__ __forceinline__ void load_batch(int t0) {
    const int set = threadIdx.x / kParts, part = threadIdx.x % kParts;
    if (set >= kSets) return;
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      const int c = set + kSets * (t0 + t);
      if (c < begin || c >= end) continue;
      const int cell = s.cell[c];
      const bool slot = Slots && cell < 0;
      values[t].load(slot ? slots.v : v, slot ? slots.v_scales : v_scales, static_cast<size_t>(slot ? ~cell : cell) * D, 8 * part, kGroup);
    }
  }
};

// Where splits leave their results: of one row, [heads][splits] maxima and sums, [heads][splits][D] values.
template <int D> struct SplitResults {
  float *top, *sum, *value;
  int splits;

  __device__ __forceinline__ SplitResults(float* at, int heads, int most) : splits(most) {
    const size_t count = static_cast<size_t>(heads) * most;
    top = at, sum = at + count, value = at + 2 * count;
  }
  __device__ __forceinline__ size_t index(int head, int split) const { return static_cast<size_t>(head) * splits + split; }
};

// Joins splits [0, count) of `heads` heads from `head` on in ascending order under their largest maximum: (head, value, result)
// to `store`, for the two values of a thread. `room`: [2][H][kJoined] floats.
template <int H, int D> struct Join {
  static constexpr int kJoined = 512, kAhead = 24;  // splits whose weights are held at a time; loads in flight

  static __device__ __forceinline__ float largest(const float* top, int count) {
    float most = bits_float(0xff800000u);
    for (int i = lane_id(); i < count; i += 32) most = fmaxf(most, __ldcg(top + i));
    return warp_max(most);
  }

  template <class Store> static __device__ void run(const SplitResults<D>& r, int head, int heads, int count, float* room, Store store) {
    constexpr int units = (H * D / 2 + kSplitThreads - 1) / kSplitThreads;
    float *factor = room, *sums = room + H * kJoined;
    float total[units][2] = {}, sum[units] = {};
    for (int first = 0; first < count; first += kJoined) {
      const int n = min(count - first, kJoined);
      __syncthreads();
      for (int h = warp_id(); h < heads; h += kSplitThreads / 32) {
        const float most = largest(r.top + r.index(head + h, 0), count);
        for (int i = lane_id(); i < n; i += 32) {
          factor[h * kJoined + i] = exp32(__ldcg(r.top + r.index(head + h, first + i)) - most);
          sums[h * kJoined + i] = __ldcg(r.sum + r.index(head + h, first + i));
        }
      }
      __syncthreads();
#pragma unroll
      for (int e = 0; e < units; ++e) {
        const int u = threadIdx.x + e * kSplitThreads, h = u / (D / 2);
        if (h >= heads) break;
        const float2* from = reinterpret_cast<const float2*>(r.value + r.index(head + h, first) * D) + u % (D / 2);
        for (int i0 = 0; i0 < n; i0 += kAhead) {
          float2 x[kAhead];
#pragma unroll
          for (int i = 0; i < kAhead; ++i)
            if (i0 + i < n) x[i] = __ldcg(from + static_cast<size_t>(i0 + i) * (D / 2));
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            if (i0 + i >= n) break;
            const float a = factor[h * kJoined + i0 + i];
            sum[e] = fma32(sums[h * kJoined + i0 + i], a, sum[e]);
            total[e][0] = fma32(x[i].x, a, total[e][0]), total[e][1] = fma32(x[i].y, a, total[e][1]);
          }
        }
      }
    }
#pragma unroll
    for (int e = 0; e < units; ++e) {
      const int u = threadIdx.x + e * kSplitThreads, h = u / (D / 2), d = u % (D / 2) * 2;
      if (h >= heads) break;
      store(h, d, div32(total[e][0], sum[e])), store(h, d + 1, div32(total[e][1], sum[e]));
    }
  }
};

}  // namespace strata
