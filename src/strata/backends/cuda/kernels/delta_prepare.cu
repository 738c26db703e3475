// delta_prepare: the delta rule's chunk form on tensor cores, first half: all that blocks of 64 rows need before the state is known.
// Macros: STRATA_KEY_DIM, STRATA_VALUE_DIM, multiples of 64. Grid (blocks from row0 on, value heads), 256 threads: warps 0 .. 3
// have 16 rows each of one matrix, warps 4 .. 7 of another.
#include "delta_blocks.cuh"

using namespace strata;

namespace {

constexpr int kThreads = 256, kPart = 64, kPartTiles = kPart / 8;  // columns that are computed at a time
constexpr int kRow = kKeyDim + 8, kSquare = kChunk + 8, kFloats = kChunk + 4;  // strides

struct Room {
  alignas(16) uint16_t keys[2][kChunk * kRow];  // k; then -since k; then w
  alignas(16) uint16_t reads[2][kChunk * kSquare];
  alignas(16) uint16_t lower[2][kChunk * kSquare];   // L, float [64][kFloats]; then beta times the inverse
  alignas(16) uint16_t values[2][kChunk * kSquare];  // the inverse, float [64][kFloats]; then a part of v; then of u
  float log[kChunk], since[kChunk], left[kChunk], beta[kChunk], most[kThreads / 32];
};
static_assert(sizeof(float) * kFloats <= 2 * sizeof(uint16_t) * kSquare && kPart == kChunk);
static_assert(kKeyDim % kPart == 0 && kValueDim % kPart == 0);

template <int N> __device__ __forceinline__ Matrix matrix(uint16_t (&m)[2][N]) { return {m[0], N / kChunk, N}; }

// 64 rows of keys, each times -`scale` of its row where that is given.
__device__ __forceinline__ void stage_keys(const Matrix& to, const float* from, size_t stride, const float* scale, int thread, int threads) {
#pragma unroll 4
  for (int i = thread; i < kChunk * kKeyDim / 4; i += threads) {
    const int r = i / (kKeyDim / 4), c = i % (kKeyDim / 4) * 4;
    const float4 x = *reinterpret_cast<const float4*>(from + r * stride + c);
    const float s = scale == nullptr ? 1.0f : -scale[r];
    to.put(r, c, unit_parts(s * x.x, s * x.y));
    to.put(r, c + 2, unit_parts(s * x.z, s * x.w));
  }
}

// 64 rows of kPart values times a power of two, which is returned; `most`: their largest. All threads; barriers inside, none after.
__device__ __forceinline__ float stage_values(Room& s, const float* from, size_t stride, float& most) {
  constexpr int each = kChunk * kPart / 4 / kThreads;
  float4 x[each];
  float largest = 0.0f;
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const int i = threadIdx.x + e * kThreads;
    x[e] = *reinterpret_cast<const float4*>(from + i / (kPart / 4) * stride + i % (kPart / 4) * 4);
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x[e].x), fabsf(x[e].y)), fmaxf(fabsf(x[e].z), fabsf(x[e].w))));
  }
  largest = warp_max(largest);
  if (lane_id() == 0) s.most[warp_id()] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) largest = fmaxf(largest, s.most[w]);
  most = fmaxf(most, largest);
  const float power = power_below(largest, 9);  // u is at most 64 times larger
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const int i = threadIdx.x + e * kThreads, r = i / (kPart / 4), c = i % (kPart / 4) * 4;
    matrix(s.values).put(r, c, f16_parts(power * x[e].x, power * x[e].y));
    matrix(s.values).put(r, c + 2, f16_parts(power * x[e].z, power * x[e].w));
  }
  return power;
}

// Decays, by one warp: two rows a lane.
__device__ __forceinline__ void decays(Room& s, const float* gates, int heads) {
  const int i = 2 * lane_id();
  const float a = gates[static_cast<size_t>(i) * 2 * heads + heads], b = gates[static_cast<size_t>(i + 1) * 2 * heads + heads];
  float sum = a + b;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const float other = __shfl_up_sync(kFullWarp, sum, by);
    if (lane_id() >= by) sum = other + sum;
  }
  const float all = __shfl_sync(kFullWarp, sum, 31), before = __shfl_up_sync(kFullWarp, sum, 1);
  s.log[i] = lane_id() == 0 ? a : before + a, s.log[i + 1] = sum;
  __syncwarp();
#pragma unroll
  for (int e = i; e < i + 2; ++e) {
    s.since[e] = exp32(s.log[e]), s.left[e] = exp32(all - s.log[e]);
    s.beta[e] = gates[static_cast<size_t>(e) * 2 * heads];
  }
}

// acc += 16 rows of queries, from `q` on, times the keys: as add_product, but the rows come from memory.
__device__ __forceinline__ void add_query_product(float (&acc)[kChunk / 8][4], const float* q, size_t stride, const Matrix& keys, int tiles) {
#pragma unroll 2
  for (int s = 0; s < kKeySteps; ++s) {
    uint32_t hi[4], lo[4];
    load_left_parts(hi, lo, q, stride, 16 * s, kUnit);
#pragma unroll
    for (int n = 0; n < kChunk / 8; n += 2) {
      if (n >= tiles) break;
      uint32_t b_hi[4], b_lo[4];
      load_right<false>(b_hi, keys.at, keys.stride, 8 * n, 16 * s);
      load_right<false>(b_lo, keys.at + keys.apart, keys.stride, 8 * n, 16 * s);
      add_parts(acc, n, hi, lo, b_hi, b_lo);
    }
  }
}

// k_i . k_j (warps 0 .. 3) and q_i . k_j (warps 4 .. 7), float [64][kFloats], both kUnit^2 times too large; tiles beyond the diagonal
// are zeros.
__device__ __forceinline__ void squares(Room& s, float* lower, float* reads, const float* queries, size_t stride) {
  const int tile = warp_id() % kRowTiles, row0 = 16 * tile;
  const bool of_queries = warp_id() >= kRowTiles;
  float acc[kChunk / 8][4] = {};
  if (of_queries) {
    add_query_product(acc, queries + row0 * stride, stride, matrix(s.keys), 2 * tile + 2);
  } else {
    add_product<false, false>(acc, matrix(s.keys), row0, matrix(s.keys), 0, kKeySteps, 2 * tile + 2);
  }
  float* to = (of_queries ? reads : lower) + row0 * kFloats;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n)
    each_pair(acc[n], n, [&](int row, int j, float x, float y) { *reinterpret_cast<float2*>(to + row * kFloats + j) = {x, y}; });
}

// L_ij = beta_j (k_i . k_j) decay, j < i, in the keys' place; (q_i . k_j) decay, j <= i, as parts. One decay serves both. Not unrolled:
// a thread block goes through here once, and 2,600 instructions in a row would come from beyond the instruction cache.
__device__ __forceinline__ void decay_squares(Room& s, float* lower, const float* reads) {
  const auto decay = [&](int i, int j) {
    const float between = s.log[i] - s.log[j];
    return exp32(between < 0.0f ? between : 0.0f);
  };
#pragma unroll 1
  for (int u = threadIdx.x; u < kChunk * kChunk / 2; u += kThreads) {
    const int i = u / (kChunk / 2), j = u % (kChunk / 2) * 2;
    float2 &k = *reinterpret_cast<float2*>(lower + i * kFloats + j), l = {};
    float2 q = {};
    if (j <= i) {
      const float2 read = *reinterpret_cast<const float2*>(reads + i * kFloats + j);
      const float first = decay(i, j), second = decay(i, j + 1);
      q.x = (kUnitInverse * kUnitInverse * read.x) * first;
      if (j < i) q.y = (kUnitInverse * kUnitInverse * read.y) * second, l.x = s.beta[j] * ((kUnitInverse * kUnitInverse * k.x) * first);
      if (j + 1 < i) l.y = s.beta[j + 1] * ((kUnitInverse * kUnitInverse * k.y) * second);
    }
    k = l;
    matrix(s.reads).put(i, j, unit_parts(q.x, q.y));
  }
}

// (I + L)^-1 of the four squares of 16 on the diagonal: a thread a column.
__device__ __forceinline__ void invert_diagonal(const float* lower, float* inverse) {
  const int first = static_cast<int>(threadIdx.x) / 16 * 16, c = threadIdx.x % 16;
  float x[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    float sum = r == c ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < r; ++j) sum = fma32(-lower[(first + r) * kFloats + first + j], x[j], sum);
    x[r] = sum;
    inverse[(first + r) * kFloats + first + c] = sum;
  }
}

// Below the diagonal: with T the inverses of two squares of N, -T_1 L_10 T_0; L_10 T_0 lies in the free upper part meanwhile, which is
// why what lies above the diagonal of T in squares of 16 is left out.
template <int N> __device__ __forceinline__ void invert_below(const float* lower, float* inverse) {
  constexpr int squares = kChunk / (2 * N), units = squares * N * N / 4;
  const auto product = [&](const float* a, const float* b, float* out, float sign, int r, int c, int begin, int end) {
    float sum[4] = {};
#pragma unroll 8
    for (int j = begin; j < end; ++j) {
      const float x = a[r * kFloats + j];
      const float4 y = *reinterpret_cast<const float4*>(b + j * kFloats + c);
      sum[0] = fma32(x, y.x, sum[0]), sum[1] = fma32(x, y.y, sum[1]), sum[2] = fma32(x, y.z, sum[2]), sum[3] = fma32(x, y.w, sum[3]);
    }
    *reinterpret_cast<float4*>(out + r * kFloats + c) = {sign * sum[0], sign * sum[1], sign * sum[2], sign * sum[3]};
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int u = threadIdx.x; u < units; u += kThreads) {
      const int at = u / (N * N / 4) * 2 * N, r = u % (N * N / 4) / (N / 4), c = u % (N / 4) * 4;
      float *upper = inverse + at * kFloats + at + N, *below = inverse + (at + N) * kFloats + at;
      if (half == 0) {
        product(lower + (at + N) * kFloats + at, inverse + at * kFloats + at, upper, 1.0f, r, c, c / 16 * 16, N);
      } else {
        product(inverse + (at + N) * kFloats + at + N, upper, below, -1.0f, r, c, 0, r / 16 * 16 + 16);
      }
    }
    __syncthreads();
  }
}

// acc *= factor.
template <int N> __device__ __forceinline__ void scale(float (&acc)[N][4], float factor) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] *= factor;
}

// 16 rows as the left side of later products from step `first` on, two tiles a step.
template <int N> __device__ __forceinline__ void store_left(const float (&acc)[N][4], const LeftTiles& to, int tile, int first) {
#pragma unroll
  for (int s = 0; s < N / 2; ++s) {
    const Pair x[4] = {unit_parts(acc[2 * s][0], acc[2 * s][1]), unit_parts(acc[2 * s][2], acc[2 * s][3]),
                       unit_parts(acc[2 * s + 1][0], acc[2 * s + 1][1]), unit_parts(acc[2 * s + 1][2], acc[2 * s + 1][3])};
    uint4* place = to.place(tile, first + s);
    place[0] = {x[0].hi, x[1].hi, x[2].hi, x[3].hi}, place[1] = {x[0].lo, x[1].lo, x[2].lo, x[3].lo};
  }
}

template <int N> __device__ __forceinline__ void put_rows(const float (&acc)[N][4], const Matrix& to, int row0, int column, float power) {
#pragma unroll
  for (int n = 0; n < N; ++n)
    each_pair(acc[n], n, [&](int row, int c, float x, float y) { to.put(row0 + row, column + c, f16_parts(power * x, power * y)); });
}

struct Inputs {
  const float *qk, *mixed;
  float* out;
  int key_width, value_width;

  __device__ __forceinline__ const float* query(int row, int at) const { return qk + static_cast<size_t>(row) * 2 * key_width + at; }
  __device__ __forceinline__ const float* value(int row, int at) const {
    return mixed + static_cast<size_t>(row) * (2 * key_width + value_width) + 2 * key_width + at;
  }
};

using Part64 = float[kPartTiles][4];

// Columns `column` .. + 63 of w = -beta T since k, by warps 0 .. 3, and of u = beta T v, by the others; v lies there times `power`.
__device__ __forceinline__ void corrections(Room& s, Part64& acc, const HeadBlock& to, int column, float power) {
  const int tile = warp_id() % kRowTiles, row0 = 16 * tile;
  if (warp_id() < kRowTiles) {
    if (column >= kKeyDim) return;
    add_product<false, true>(acc, matrix(s.lower), row0, matrix(s.keys), column, tile + 1);
    scale(acc, kUnitInverse * kUnitInverse);
    store_left(acc, to.w, tile, column / 16);
  } else if (column < kValueDim) {
    add_product<false, true>(acc, matrix(s.lower), row0, matrix(s.values), 0, tile + 1);
    scale(acc, kUnitInverse * power_inverse(power));
#pragma unroll
    for (int n = 0; n < kPartTiles; ++n) *to.sums(tile, column / 8 + n) = {acc[n][0], acc[n][1], acc[n][2], acc[n][3]};
  }
}

// What w adds to rows' reading of the state.
__device__ __forceinline__ void key_reads(Room& s, const Inputs& in, const HeadBlock& to, int first, int key_at, int column) {
  const int tile = warp_id() % kRowTiles, row0 = 16 * tile;
  Part64 acc;
#pragma unroll
  for (int n = 0; n < kPartTiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = row0 + lane_id() / 4 + 8 * e;
      const float2 q = *reinterpret_cast<const float2*>(in.query(first + row, key_at) + column + 8 * n + lane_id() % 4 * 2);
      const float since = kUnit * kUnit * s.since[row];
      acc[n][2 * e] = since * q.x, acc[n][2 * e + 1] = since * q.y;
    }
  add_product<false, true>(acc, matrix(s.reads), row0, matrix(s.keys), column, tile + 1);
  scale(acc, kUnitInverse * kUnitInverse);
  store_left(acc, to.q, tile, column / 16);
}

// What u gives the block's rows.
__device__ __forceinline__ void value_reads(Room& s, const Inputs& in, int first, int value_at, float power) {
  const int tile = warp_id() % kRowTiles, row0 = 16 * tile;
  Part64 acc = {};
  add_product<false, true>(acc, matrix(s.reads), row0, matrix(s.values), 0, tile + 1);
  scale(acc, kUnitInverse * power_inverse(power));
#pragma unroll
  for (int n = 0; n < kPartTiles; ++n)
    each_pair(acc[n], n, [&](int row, int c, float x, float y) {
      *reinterpret_cast<float2*>(in.out + static_cast<size_t>(first + row0 + row) * in.value_width + value_at + c) = {x, y};
    });
}

// All columns, 64 at a time.
__device__ __forceinline__ void columns(Room& s, const Inputs& in, const HeadBlock& to, int first, int key_at, int value_at) {
  const bool keys = warp_id() < kRowTiles;
  float most = 0.0f, power = 1.0f;
  for (int column = 0; column < kKeyDim || column < kValueDim; column += kPart) {
    __syncthreads();  // the part before has been read
    if (column < kValueDim) power = stage_values(s, in.value(first, value_at + column), 2 * in.key_width + in.value_width, most);
    __syncthreads();
    Part64 acc = {};
    corrections(s, acc, to, column, power);
    __syncthreads();
    const int row0 = warp_id() % kRowTiles * 16;
    if (keys && column < kKeyDim) put_rows(acc, matrix(s.keys), row0, column, kUnit);
    if (!keys && column < kValueDim) put_rows(acc, matrix(s.values), row0, 0, power);
    __syncthreads();
    if (keys && column < kKeyDim) key_reads(s, in, to, first, key_at, column);
    if (!keys && column < kValueDim) value_reads(s, in, first, value_at + column, power);
  }
  if (threadIdx.x == 0) to.left[kChunk + 1] = kChunk * most;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 2) delta_prepare(const int* live, const float* qk, const float* mixed,
                                                                   const float* gates, float* out, uint8_t* scratch, uint16_t* keys,
                                                                   int key_heads, int heads, int tiled, int row0) {
  STRATA_DYNAMIC_SHARED(shared);
  Room& s = *reinterpret_cast<Room*>(shared);
  dependency_wait();
  dependency_launch();
  const int block = blockIdx.x, h = blockIdx.y, first = row0 + block * kChunk;
  if (first + kChunk > *live) return;
  const Delta delta{{}, nullptr, nullptr, key_heads, heads, kValueDim, tiled};
  const Inputs in{qk, mixed, out, delta.key_width(), delta.value_width()};
  const int key_at = delta.key_head(h) * kKeyDim;
  const HeadBlock to(scratch, block, heads, h);
  float *lower = reinterpret_cast<float*>(s.lower[0]), *inverse = reinterpret_cast<float*>(s.values[0]);
  const float* key = in.query(first, in.key_width + key_at);
  const size_t stride = 2 * static_cast<size_t>(in.key_width);
  stage_keys(matrix(s.keys), key, stride, nullptr, threadIdx.x, kThreads);
  if (warp_id() == 0) decays(s, gates + static_cast<size_t>(first) * 2 * heads + h, heads);
  __syncthreads();
  squares(s, lower, inverse, in.query(first, key_at), stride);  // what rows read lies where the inverse will
  __syncthreads();
  decay_squares(s, lower, inverse);
  if (delta.owns_key(h)) {
    uint16_t* kept = block_keys(keys, block, key_heads, delta.key_head(h));
    for (int i = threadIdx.x; i < kChunk * 2 * kKeyDim / 8; i += kThreads) {
      const int r = i / (2 * kKeyDim / 8), part = i / (kKeyDim / 8) % 2, c = i % (kKeyDim / 8) * 8;
      *reinterpret_cast<uint4*>(kept + 8 * i) = *reinterpret_cast<const uint4*>(s.keys[part] + r * kRow + c);
    }
  }
  __syncthreads();
  if (threadIdx.x < kChunk) {
    invert_diagonal(lower, inverse);
  } else {
    stage_keys(matrix(s.keys), key, stride, s.since, threadIdx.x - kChunk, kThreads - kChunk);
  }
  if (threadIdx.x < kChunk) to.left[threadIdx.x] = s.left[threadIdx.x];
  if (threadIdx.x == 0) to.left[kChunk] = s.since[kChunk - 1];
  __syncthreads();
  invert_below<16>(lower, inverse);
  invert_below<32>(lower, inverse);
  for (int i = threadIdx.x; i < kChunk * kChunk / 2; i += kThreads) {
    const int r = i / (kChunk / 2), c = i % (kChunk / 2) * 2;
    const float *from = inverse + r * kFloats + c, b = s.beta[r];
    matrix(s.lower).put(r, c, unit_parts(c <= r ? b * from[0] : 0.0f, c < r ? b * from[1] : 0.0f));
  }
  columns(s, in, to, first, key_at, h * kValueDim);
}
