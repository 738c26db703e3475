// Softmax and value sums of one attention split of 256 cells, and how splits join.
#pragma once
#include <limits>

#include "cpu/kernels/kernel.h"
#include "cpu/kernels/simd.h"

namespace strata::STRATA_LEVEL {

constexpr int kRowValues = 64;  // sums taken together: values of a head, or the cells of a page
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Of one row and head: max = -infinity where the split has no visible cell.
struct SplitSoftmax {
  float max, sum;
};

// scores[t] = exp32(scores[t] - max) for t in [0, n), n a multiple of 32.
STRATA_HD void exp_scores(float* __restrict scores, float max, int64_t n) {
#if STRATA_SIMD
  for (int64_t t = 0; t < n; t += 16)
    store_floats(scores + t, exp_floats(add(load_floats(scores + t), splat(-max))));
#else
  for (int64_t t = 0; t < n; ++t) scores[t] = exp32(scores[t] - max);
#endif
}

// Cells [begin, end) of a split: scores become exp(score - max), 0 for the cells around them, up to a multiple of 32; the
// sum is in 32 lanes by cell and a tree.
STRATA_HD SplitSoftmax split_softmax(float* __restrict scores, int64_t begin, int64_t end) {
  alignas(64) float max[kLanes], sum[kLanes] = {};
  const int64_t rounded = (end + kLanes - 1) / kLanes * kLanes;
  for (int64_t t = 0; t < begin; ++t) scores[t] = kNoScore;
  for (int64_t t = end; t < rounded; ++t) scores[t] = kNoScore;
  for (int i = 0; i < kLanes; ++i) max[i] = kNoScore;
  for (int64_t t = 0; t < rounded; t += kLanes)
    for (int i = 0; i < kLanes; ++i) max[i] = scores[t + i] > max[i] ? scores[t + i] : max[i];
  for (int i = 1; i < kLanes; ++i) max[0] = max[i] > max[0] ? max[i] : max[0];
  exp_scores(scores, max[0], rounded);  // a lane that starts at +0 takes +0 without a change
  for (int64_t t = 0; t < rounded; t += kLanes)
    for (int i = 0; i < kLanes; ++i) sum[i] += scores[t + i];
  return {max[0], tree_sum(sum)};
}

#if STRATA_SIMD == 512

// scores[c] = lane dot(q, rows[c]) for sixteen rows of n values, n a multiple of 32: the trees of sixteen sums together.
STRATA_HD void dots16(const float* __restrict q, const float* __restrict rows, int64_t n, float* __restrict scores) {
  __m512 v[16], w[8], x[4], y[2];
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) {
    __m512 low = _mm512_setzero_ps(), high = low;
    for (int64_t i = 0; i < n; i += kLanes) {
      low = _mm512_fmadd_ps(_mm512_loadu_ps(q + i), _mm512_loadu_ps(rows + c * n + i), low);
      high = _mm512_fmadd_ps(_mm512_loadu_ps(q + i + 16), _mm512_loadu_ps(rows + c * n + i + 16), high);
    }
    v[c] = _mm512_add_ps(low, high);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)  // lanes 8 apart
    w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)  // 4 apart
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(w[2 * i], w[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(w[2 * i], w[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // 2 apart
    const __m512d a = _mm512_castps_pd(x[2 * i]), b = _mm512_castps_pd(x[2 * i + 1]);
    y[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 z = _mm512_add_ps(_mm512_shuffle_ps(y[0], y[1], 0x88), _mm512_shuffle_ps(y[0], y[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(scores, _mm512_permutexvar_ps(order, z));
}

#endif

// to[i * kRowValues + c] = rows[c * n + i] for kRowValues rows of n values.
STRATA_HD void transpose_rows(const float* __restrict rows, int64_t n, float* __restrict to) {
  int64_t done = 0;
#if STRATA_SIMD == 512
  for (; done + 16 <= n; done += 16)
    for (int64_t c = 0; c < kRowValues; c += 16) {
      __m512 x[16], t[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) x[r] = _mm512_loadu_ps(rows + (c + r) * n + done);
      // Four perfect shuffles of rows and values: pairs of 32, 64, 128 and 256 bits.
#pragma GCC unroll 8
      for (int r = 0; r < 16; r += 2)
        t[r] = _mm512_unpacklo_ps(x[r], x[r + 1]), t[r + 1] = _mm512_unpackhi_ps(x[r], x[r + 1]);
#pragma GCC unroll 4
      for (int r = 0; r < 16; r += 4)
#pragma GCC unroll 2
        for (int e = 0; e < 2; ++e) {
          const __m512d a = _mm512_castps_pd(t[r + e]), b = _mm512_castps_pd(t[r + 2 + e]);
          x[r + 2 * e] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
          x[r + 2 * e + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e) {  // x[4 g + e] lane l: value 4 l + e of rows 4 g .. 4 g + 3
        const __m512 a = _mm512_shuffle_f32x4(x[e], x[4 + e], 0x88), b = _mm512_shuffle_f32x4(x[8 + e], x[12 + e], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(x[e], x[4 + e], 0xdd), f = _mm512_shuffle_f32x4(x[8 + e], x[12 + e], 0xdd);
        float* at = to + (done + e) * kRowValues + c;
        _mm512_storeu_ps(at, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(at + 4 * kRowValues, _mm512_shuffle_f32x4(d, f, 0x88));
        _mm512_storeu_ps(at + 8 * kRowValues, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(at + 12 * kRowValues, _mm512_shuffle_f32x4(d, f, 0xdd));
      }
    }
#elif STRATA_SIMD == 256
  for (; done + 8 <= n; done += 8)
    for (int64_t c = 0; c < kRowValues; c += 8) {
      __m256 x[8], t[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) x[r] = _mm256_loadu_ps(rows + (c + r) * n + done);
#pragma GCC unroll 4
      for (int r = 0; r < 8; r += 2)
        t[r] = _mm256_unpacklo_ps(x[r], x[r + 1]), t[r + 1] = _mm256_unpackhi_ps(x[r], x[r + 1]);
#pragma GCC unroll 2
      for (int r = 0; r < 8; r += 4)
#pragma GCC unroll 2
        for (int e = 0; e < 2; ++e) {  // x[r + i]: values i and 4 + i of rows r .. r + 3
          x[r + 2 * e] = _mm256_shuffle_ps(t[r + e], t[r + 2 + e], 0x44);
          x[r + 2 * e + 1] = _mm256_shuffle_ps(t[r + e], t[r + 2 + e], 0xee);
        }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + (done + i) * kRowValues + c, _mm256_permute2f128_ps(x[i], x[4 + i], 0x20));
        _mm256_storeu_ps(to + (done + 4 + i) * kRowValues + c, _mm256_permute2f128_ps(x[i], x[4 + i], 0x31));
      }
    }
#endif
  for (int64_t c = 0; c < kRowValues; ++c)
    for (int64_t i = done; i < n; ++i) to[i * kRowValues + c] = rows[c * n + i];
}

// scores[c] = lane dot(q, rows[c]) for `count` rows of n values, count a multiple of 16.
STRATA_HD void row_dots(const float* __restrict q, const float* __restrict rows, int64_t n, int64_t count,
                        float* __restrict scores) {
#if STRATA_SIMD == 512
  if (n % kLanes == 0) {
    for (int64_t c = 0; c < count; c += 16) dots16(q, rows + c * n, n, scores + c);
    return;
  }
#endif
  for (int64_t c = 0; c < count; ++c) {
    alignas(64) float acc[kLanes] = {};
    lanes_fma(q, rows + c * n, n, acc);
    scores[c] = tree_sum(acc);
  }
}

// out[i] = sum over t in [begin, end) of weights[t] * rows[t][i]: t by fma into lane t mod 32, then the tree. With
// weights = softmax and rows = V this is a split's values; with weights = q and rows = K transposed, a page's scores.
STRATA_HD void lanes_of_rows(const float* __restrict weights, const float* __restrict rows, int64_t begin, int64_t end,
                             float* __restrict out) {
  constexpr int kHalf = kLanes / 2;  // the tree's first level is taken at once: lanes j and j + 16 are added
  alignas(64) float lanes[kHalf][kRowValues];
  for (int64_t lane = 0; lane < kHalf; ++lane) {
    float acc0[kRowValues] = {}, acc1[kRowValues] = {};
    for (int64_t t = begin + ((lane - begin) & (kLanes - 1)); t < end; t += kLanes)
      for (int i = 0; i < kRowValues; ++i) acc0[i] = fma32(weights[t], rows[t * kRowValues + i], acc0[i]);
    for (int64_t t = begin + ((lane + kHalf - begin) & (kLanes - 1)); t < end; t += kLanes)
      for (int i = 0; i < kRowValues; ++i) acc1[i] = fma32(weights[t], rows[t * kRowValues + i], acc1[i]);
    for (int i = 0; i < kRowValues; ++i) lanes[lane][i] = acc0[i] + acc1[i];
  }
  for (int half = kHalf / 2; half > 1; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      for (int i = 0; i < kRowValues; ++i) lanes[lane][i] += lanes[lane + half][i];
  for (int i = 0; i < kRowValues; ++i) out[i] = lanes[0][i] + lanes[1][i];
}

constexpr int kRowsUnits = 4;  // sums of the same rows that share their loads

#if STRATA_SIMD

// Four vectors of the sums' columns at a time, for as many units as registers hold.
template <int units>
STRATA_HD void lanes_of_rows_fixed(const float* weights, int64_t weight_stride, const float* rows, int64_t begin,
                                   int64_t end, float* out, int64_t out_stride) {
  constexpr int kHalf = kLanes / 2, kWide = 4;
  FloatVector lanes[units][kHalf][kWide];
  for (int64_t lane = 0; lane < kHalf; ++lane) {
#pragma GCC unroll 2
    for (int upper = 0; upper < 2; ++upper) {
      FloatVector acc[units][kWide];
#pragma GCC unroll 4
      for (int u = 0; u < units; ++u)
#pragma GCC unroll 4
        for (int i = 0; i < kWide; ++i) acc[u][i] = splat_vector(0.0f);
      for (int64_t t = begin + ((lane + kHalf * upper - begin) & (kLanes - 1)); t < end; t += kLanes) {
        FloatVector row[kWide];
#pragma GCC unroll 4
        for (int i = 0; i < kWide; ++i) row[i] = load_vector(rows + t * kRowValues + kVectorLanes * i);
#pragma GCC unroll 4
        for (int u = 0; u < units; ++u) {
          const FloatVector w = splat_vector(weights[u * weight_stride + t]);
#pragma GCC unroll 4
          for (int i = 0; i < kWide; ++i) acc[u][i] = fma(w, row[i], acc[u][i]);
        }
      }
#pragma GCC unroll 4
      for (int u = 0; u < units; ++u)
#pragma GCC unroll 4
        for (int i = 0; i < kWide; ++i) lanes[u][lane][i] = upper ? add(lanes[u][lane][i], acc[u][i]) : acc[u][i];
    }
  }
#pragma GCC unroll 4
  for (int u = 0; u < units; ++u)
#pragma GCC unroll 4
    for (int i = 0; i < kWide; ++i) {
      FloatVector sum[kHalf];
#pragma GCC unroll 16
      for (int lane = 0; lane < kHalf; ++lane) sum[lane] = lanes[u][lane][i];
#pragma GCC unroll 4
      for (int half = kHalf / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int lane = 0; lane < half; ++lane) sum[lane] = add(sum[lane], sum[lane + half]);
      store_floats(out + u * out_stride + kVectorLanes * i, sum[0]);
    }
}

#endif

// lanes_of_rows for up to kRowsUnits units of weights: unit u's lie at u * weight_stride, its sums at u * out_stride.
STRATA_HD void lanes_of_rows(const float* weights, int64_t weight_stride, int64_t units, const float* rows,
                             int64_t begin, int64_t end, float* out, int64_t out_stride) {
#if STRATA_SIMD
  constexpr int64_t together = STRATA_SIMD == 512 ? 4 : 2;
  for (int64_t u = 0; u < units; u += together)
    for (int64_t column = 0; column < kRowValues; column += 4 * kVectorLanes) {
      const float *w = weights + u * weight_stride, *x = rows + column;
      float* y = out + u * out_stride + column;
      switch (units - u < together ? units - u : together) {
        case 1: lanes_of_rows_fixed<1>(w, weight_stride, x, begin, end, y, out_stride); break;
        case 2: lanes_of_rows_fixed<2>(w, weight_stride, x, begin, end, y, out_stride); break;
#if STRATA_SIMD == 512
        case 3: lanes_of_rows_fixed<3>(w, weight_stride, x, begin, end, y, out_stride); break;
        default: lanes_of_rows_fixed<4>(w, weight_stride, x, begin, end, y, out_stride); break;
#endif
      }
    }
#else
  for (int64_t u = 0; u < units; ++u)
    lanes_of_rows(weights + u * weight_stride, rows, begin, end, out + u * out_stride);
#endif
}

// Joins splits 0 .. splits - 1 in ascending order under their largest maximum: out[d] = sum of value sums over sum of
// weights. Split s has softmax[s] and values + s * stride.
STRATA_HD void join_splits(const SplitSoftmax* softmax, const float* values, int64_t splits, int64_t stride,
                           int64_t head_dim, float* __restrict out) {
  float max = softmax[0].max, sum = 0.0f;
  for (int64_t s = 1; s < splits; ++s) max = softmax[s].max > max ? softmax[s].max : max;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0.0f;
  for (int64_t s = 0; s < splits; ++s) {
    if (softmax[s].max == kNoScore) continue;
    const float factor = exp32(softmax[s].max - max);
    const float* __restrict part = values + s * stride;
    sum = fma32(softmax[s].sum, factor, sum);
    for (int64_t d = 0; d < head_dim; ++d) out[d] = fma32(part[d], factor, out[d]);
  }
  for (int64_t d = 0; d < head_dim; ++d) out[d] = div32(out[d], sum);
}

}  // namespace strata::STRATA_LEVEL
