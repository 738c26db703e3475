// delta_pass: the delta rule's chunk form on tensor cores, second half: the state goes through the blocks of a launch's rows, from what
// delta_prepare.cu left. Taps at multiples of 64 write it to a slot. Macros: STRATA_KEY_DIM, STRATA_VALUE_DIM, STRATA_COLUMNS (values of
// a head that a thread block has: 32 or 64). Grid (value_dim / columns, value heads), 256 threads.
#include "delta_blocks.cuh"

using namespace strata;

namespace {

constexpr int kThreads = 256, kColumns = STRATA_COLUMNS, kTiles = kColumns / 8;
constexpr int kKeyRow = kKeyDim + 8, kColumnRow = kColumns + 8;
constexpr int kValueParts = kColumns / 16, kKeyParts = 8 / kValueParts, kKeyTiles = kKeyDim / 8 / kKeyParts;  // of the state, a warp's
static_assert(kKeyTiles % 2 == 0);

struct Room {
  alignas(16) uint16_t keys[2][2][kChunk * kKeyRow];
  alignas(16) uint16_t state[2][kColumns * kKeyRow];
  alignas(16) uint16_t kept[2][kChunk * kColumnRow];  // corrections times the decay that is left
  float most[kThreads / 32];
};

template <int N, int Rows> __device__ __forceinline__ Matrix matrix(uint16_t (&m)[2][N]) { return {m[0], N / Rows, N}; }

// A warp's 16 values by 8 kKeyTiles keys of the state, float32.
struct State {
  float at[kKeyTiles][4];

  static __device__ __forceinline__ int value() { return warp_id() % kValueParts * 16; }
  static __device__ __forceinline__ int key() { return warp_id() / kValueParts * 8 * kKeyTiles; }
  // Calls f(place in the head's columns, x, y).
  template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const size_t place = static_cast<size_t>(value() + lane_id() / 4) * kKeyDim + key() + 8 * n + lane_id() % 4 * 2;
      f(place, at[n][0], at[n][1]);
      f(place + 8 * kKeyDim, at[n][2], at[n][3]);
    }
  }
  __device__ __forceinline__ void load(const float* columns) {
    each([&](size_t place, float& x, float& y) {
      const float2 pair = *reinterpret_cast<const float2*>(columns + place);
      x = pair.x, y = pair.y;
    });
  }
  __device__ __forceinline__ void store(float* columns) {
    each([&](size_t place, float x, float y) { *reinterpret_cast<float2*>(columns + place) = {x, y}; });
  }
  // The columns of all warps as halves times a power of two, which is returned; `largest`: of them. A barrier inside, none after.
  __device__ __forceinline__ float stage(const Matrix& to, float (&most)[kThreads / 32], float& largest) {
    float own = 0.0f;
    each([&](size_t, float x, float y) { own = fmaxf(own, fmaxf(fabsf(x), fabsf(y))); });
    own = warp_max(own);
    if (lane_id() == 0) most[warp_id()] = own;
    __syncthreads();
    largest = most[0];
#pragma unroll
    for (int w = 1; w < kThreads / 32; ++w) largest = fmaxf(largest, most[w]);
    const float power = power_below(largest, 12);
    each([&](size_t place, float x, float y) {
      to.put(static_cast<int>(place / kKeyDim), static_cast<int>(place % kKeyDim), f16_parts(power * x, power * y));
    });
    return power;
  }
};

__device__ __forceinline__ void fetch_keys(uint16_t (&to)[2][kChunk * kKeyRow], const uint16_t* from) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kChunk * 2 * kKeyDim / 8; i += kThreads) {
    const int r = i / (2 * kKeyDim / 8), part = i / (kKeyDim / 8) % 2, c = i % (kKeyDim / 8) * 8;
    copy_async<16>(to[part] + r * kKeyRow + c, from + 8 * i);
  }
  copies_group();
}

// What a warp reads of a block: 16 rows of w or of q.
struct Left {
  uint4 at[kKeySteps][2];
  __device__ __forceinline__ void load(const HeadBlock& block) {
    const LeftTiles& from = warp_id() < kRowTiles ? block.w : block.q;
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s)
      at[s][0] = from.place(warp_id() % kRowTiles, s)[0], at[s][1] = from.place(warp_id() % kRowTiles, s)[1];
  }
};

__device__ __forceinline__ void times_state(float (&acc)[kTiles][4], const Left& left, const Matrix& state) {
#pragma unroll
  for (int s = 0; s < kKeySteps; ++s) {
    const uint4 h = left.at[s][0], l = left.at[s][1];
    const uint32_t hi[4] = {h.x, h.y, h.z, h.w}, lo[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b_hi[4], b_lo[4];
      load_right<false>(b_hi, state.at, state.stride, 8 * n, 16 * s);
      load_right<false>(b_lo, state.at + state.apart, state.stride, 8 * n, 16 * s);
      add_parts(acc, n, hi, lo, b_hi, b_lo);
    }
  }
}

struct Pass {
  Delta delta;
  const uint8_t* scratch;
  const uint16_t* keys;
  float* out;
  int h, column, block0;  // block0: of the launch's first row

  __device__ __forceinline__ HeadBlock block(int i) const { return {const_cast<uint8_t*>(scratch), i, delta.heads, h}; }
  __device__ __forceinline__ const uint16_t* block_keys_of(int i) const {
    return block_keys(const_cast<uint16_t*>(keys), i, delta.key_heads, delta.key_head(h));
  }

  // Where this warp's outputs of a tile's row r go.
  __device__ __forceinline__ float2* output(int row, int r, int c) const {
    return reinterpret_cast<float2*>(out + static_cast<size_t>(row + r) * delta.value_width() + h * kValueDim + column + c);
  }

  // What `finish` adds to, of the rows from `row` on: corrections without the state, or outputs. All of it is on its way at once, and before
  // anything is stored, for a load that follows a store waits for it.
  __device__ __forceinline__ void begin(float (&given)[kTiles][4], const HeadBlock& b, int row) const {
    const int tile = warp_id() % kRowTiles, r = 16 * tile + lane_id() / 4, c = lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (warp_id() < kRowTiles) {
        const float4 u = *b.sums(tile, column / 8 + n);
        given[n][0] = u.x, given[n][1] = u.y, given[n][2] = u.z, given[n][3] = u.w;
      } else {
        const float2 x = *output(row, r, 8 * n + c), y = *output(row, r + 8, 8 * n + c);
        given[n][0] = x.x, given[n][1] = x.y, given[n][2] = y.x, given[n][3] = y.y;
      }
    }
  }

  // Corrections times `power` (warps 0 .. 3) to shared memory, outputs (warps 4 .. 7) to `out`, from acc = w S or q S over `inverse`; left: of
  // the block's rows.
  __device__ __forceinline__ void finish(float (&acc)[kTiles][4], const float (&given)[kTiles][4], const float (&left)[2], const Matrix& kept, int row,
                                         float inverse, float power) const {
    const int row0 = 16 * (warp_id() % kRowTiles);
    const bool corrects = warp_id() < kRowTiles;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        acc[n][e] = inverse * acc[n][e] + given[n][e];
        if (corrects) acc[n][e] = left[e / 2] * acc[n][e];
      }
      each_pair(acc[n], n, [&](int r, int c, float x, float y) {
        if (corrects) {
          kept.put(row0 + r, c, f16_parts(power * x, power * y));
        } else {
          *output(row, row0 + r, c) = {x, y};
        }
      });
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256, kColumns == 32 ? 2 : 1) delta_pass(
    const int* live, const int* positions, const int* sequences, const int* commits, float* state, float* pending,
    const uint8_t* scratch, const uint16_t* keys, float* out, const int* tap_positions, const int* tap_slots, int key_heads, int heads,
    int tiled, int slots, int row0, int rows, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  Room& s = *reinterpret_cast<Room*>(shared);
  dependency_wait();
  dependency_launch();
  const int all = *live, end = min(all, row0 + rows);
  const Pass pass{{{positions, sequences, all, slots}, state, pending, key_heads, heads, kValueDim, tiled},
                  scratch, keys, out, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * kColumns, row0 / kChunk};
  const Delta& delta = pass.delta;
  const size_t slot = static_cast<size_t>(heads) * kValueDim * kKeyDim;
  const size_t own = (static_cast<size_t>(pass.h) * kValueDim + pass.column) * kKeyDim;
  const Matrix staged = matrix<kColumns * kKeyRow, kColumns>(s.state), kept = matrix<kChunk * kColumnRow, kChunk>(s.kept);
  for (int first = row0, count; first < end; first += count) {
    count = delta.rows.group_rows(first);
    const int sequence = sequences[first], position = positions[first];
    bool good = delta.rows.valid(first) && count % kChunk == 0 && position % kChunk == 0;
    count = min(count, end - first);
    if (good && delta.rows.begins(first)) {
      Part part;
      for (int v = warp_id(); v < kColumns; v += kThreads / 32)
        good &= settle(delta, commits, sequence, position, pass.h, pass.column + v, part);
    }
    if (__syncthreads_or(!good)) {
      report(faults, kFaultRange);
      continue;
    }
    State now;
    now.load(state + sequence * slot + own);
    float largest, staged_power = now.stage(staged, s.most, largest);
    const int block0 = (first - row0) / kChunk, blocks = count / kChunk;
    fetch_keys(s.keys[0], pass.block_keys_of(block0));
    Left left;
    left.load(pass.block(block0));
    __syncthreads();
    for (int i = 0; i < blocks; ++i) {
      const HeadBlock block = pass.block(block0 + i);
      if (i + 1 < blocks) fetch_keys(s.keys[(i + 1) % 2], pass.block_keys_of(block0 + i + 1));
      const int row = first + i * kChunk, own_row = 16 * (warp_id() % kRowTiles) + lane_id() / 4;
      const float kept_of[2] = {block.left[own_row], block.left[own_row + 8]}, kept_of_all = block.left[kChunk], bound = block.left[kChunk + 1];
      float acc[kTiles][4] = {}, given[kTiles][4];
      times_state(acc, left, staged);
      pass.begin(given, block, row);
      const float power = power_below(bound + 16.0f * largest, 15);  // |w S| is at most |S|'s length, of 128 keys
      pass.finish(acc, given, kept_of, kept, row, kUnitInverse * power_inverse(staged_power), power);
      if (i + 1 < blocks) {
        left.load(pass.block(block0 + i + 1));
        copies_wait_for_groups<1>();
      } else {
        copies_wait_for_groups<0>();
      }
      __syncthreads();
      const float decay = kUnit * power * kept_of_all;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) now.at[n][e] = decay * now.at[n][e];
      add_product<true, true>(now.at, kept, State::value(), matrix<kChunk * kKeyRow, kChunk>(s.keys[i % 2]), State::key(), kChunk / 16);
      const float back = kUnitInverse * power_inverse(power);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) now.at[n][e] = back * now.at[n][e];
      staged_power = now.stage(staged, s.most, largest);
      const int after = position + (i + 1) * kChunk;
      for (int t = 0; t < kMaxTaps; ++t) {
        if (tap_positions[t] != after) continue;
        if (tap_slots[t] >= 0 && tap_slots[t] < slots) now.store(state + tap_slots[t] * slot + own);
        if (tap_slots[t] >= slots) report(faults, kFaultRange);
      }
      __syncthreads();
    }
    now.store(state + sequence * slot + own);
  }
}
