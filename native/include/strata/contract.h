// The arithmetic contract (docs/contract.md): every rounding that decides a result, in one text for GCC and NVRTC.
//
// Rules that make it hold: compile with contraction off (-ffp-contract=off, --fmad=false) and without fast math, use
// fma only where it is written, keep subnormals, and let no sum's order depend on threads, rows or tiers.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define STRATA_HD __host__ __device__ __forceinline__
#else
#define STRATA_HD inline __attribute__((always_inline))
#endif

#if !defined(__CUDACC_RTC__)
#include <cmath>
#include <cstdint>
#include <cstring>
#else
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#endif

namespace strata {

// ---- frozen constants ------------------------------------------------------------------------------------------

constexpr int kBlock = 32;            // activation block: one scale per 32 values
constexpr int kMaxSegments = 16;      // contiguous parts of K in a quantised product, summed in order: a power of
constexpr int kSegmentBlocks = 4;     // two up to 16 with at least 4 blocks each (segments() below)
constexpr int kLanes = 32;            // lanes of every float sum: element i goes to lane i mod 32
constexpr int kAttentionSplit = 256;  // cells per attention split, at fixed absolute positions

// ---- single operations -----------------------------------------------------------------------------------------

STRATA_HD uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
#endif
}

STRATA_HD float bits_float(uint32_t u) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(u);
#else
  float x;
  memcpy(&x, &u, 4);
  return x;
#endif
}

STRATA_HD float fma32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

STRATA_HD float div32(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

STRATA_HD float sqrt32(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

// Nearest integer, ties to even.
STRATA_HD float rint32(float a) {
#if defined(__CUDA_ARCH__)
  return rintf(a);
#else
  return __builtin_rintf(a);
#endif
}

// IEEE half to float, exact; all 65,536 codes, subnormals, infinities and NaN included.
STRATA_HD float half_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t exponent = rest & 0x0f800000u;
  if (exponent == 0x0f800000u) return bits_float(sign | rest | 0x7f800000u);
  if (exponent == 0) return bits_float(sign | float_bits(bits_float(rest | 0x38800000u) - bits_float(0x38800000u)));
  return bits_float(sign | (rest + 0x38000000u));
#endif
}

// Float to IEEE half, nearest, ties to even; overflow to infinity.
STRATA_HD uint16_t float_half(float x) {
  const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u;
  uint32_t a = u & 0x7fffffffu;
  if (a >= 0x47800000u) return static_cast<uint16_t>(sign | (a > 0x7f800000u ? 0x7e00u : 0x7c00u));
  if (a < 0x38800000u) {  // half subnormal: adding 0.5 leaves the rounded code in the low bits
    return static_cast<uint16_t>(sign | (float_bits(bits_float(a) + 0.5f) - 0x3f000000u));
  }
  a += 0x0fffu + ((a >> 13) & 1u);  // may carry into the exponent, up to infinity
  return static_cast<uint16_t>(sign | ((a - 0x38000000u) >> 13));
}

STRATA_HD float bf16_float(uint16_t h) { return bits_float(static_cast<uint32_t>(h) << 16); }

// ---- exponentials ----------------------------------------------------------------------------------------------

// e^x to 1 ulp or so: 0 below -87, x held at 88 above. Cody-Waite reduction by ln 2, then the Taylor polynomial
// of degree 7 on |r| <= ln(2)/2 (remainder 5e-9, under half an ulp).
STRATA_HD float exp32(float x) {
  if (!(x >= -87.0f)) return x != x ? x : 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float n = rint32(x * 1.44269504088896341f);
  float r = fma32(n, -0.693145751953125f, x);  // ln 2, upper 15 bits: n times it is exact
  r = fma32(n, -1.42860682030941723e-6f, r);   // the rest of ln 2
  float p = 1.98412698e-4f;
  p = fma32(p, r, 1.38888889e-3f);
  p = fma32(p, r, 8.33333377e-3f);
  p = fma32(p, r, 4.16666679e-2f);
  p = fma32(p, r, 1.66666672e-1f);
  p = fma32(p, r, 0.5f);
  p = fma32(p, r, 1.0f);
  p = fma32(p, r, 1.0f);
  return p * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

STRATA_HD float sigmoid32(float x) { return div32(1.0f, 1.0f + exp32(-x)); }
STRATA_HD float silu32(float x) { return div32(x, 1.0f + exp32(-x)); }
// The tanh form of gelu, 0.5 x (1 + tanh(y)) = x sigmoid(2 y) with y = sqrt(2 / pi) (x + 0.044715 x^3).
STRATA_HD float gelu32(float x) {
  const float u = 1.5957691216f * fma32(0.044715f * (x * x), x, x);
  return div32(x, 1.0f + exp32(-u));
}

// Natural logarithm of a positive normal number: x = 2^e m with m in [sqrt(1/2), sqrt(2)). With f = m - 1 and
// s = f / (2 + f), log m = f - (f^2/2 - s (f^2/2 + R)), R the series of log((1 + s) / (1 - s)) / s - 2 (as in fdlibm: f is
// exact, so what is rounded is small).
STRATA_HD float log32(float x) {
  const uint32_t u = float_bits(x) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(u) >> 23);
  const float m = bits_float((u & 0x007fffffu) + 0x3f3504f3u);
  const float f = m - 1.0f, half = 0.5f * (f * f);
  const float s = div32(f, 2.0f + f), z = s * s;
  float p = 0.222222222f;
  p = fma32(p, z, 0.285714285f);
  p = fma32(p, z, 0.4f);
  p = fma32(p, z, 0.666666667f);
  const float t = fma32(s, fma32(z, p, half), e * 1.42860682030941723e-6f);
  return fma32(e, 0.693145751953125f, f - (half - t));
}

// log(1 + e^x).
STRATA_HD float softplus32(float x) {
  if (x > 20.0f) return x;
  const float e = exp32(x), y = 1.0f + e;
  return log32(y) + div32(e - (y - 1.0f), y);  // y - 1 is exact; the second term restores what rounding y lost
}

// ---- sums ------------------------------------------------------------------------------------------------------

// Adds 32 lanes with a fixed tree, halves apart by 16, 8, 4, 2, 1 (a warp's xor shuffle gives the same bits).
STRATA_HD float tree_sum(float* lane) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// ---- quantised products ----------------------------------------------------------------------------------------

// Number of segments of a row of `blocks` blocks. Depends on K alone: 80 blocks (K = 2560) give 16, 20 give 4.
STRATA_HD constexpr int segments(int blocks) {
  int s = 1;
  while (s < kMaxSegments && blocks >= 2 * s * kSegmentBlocks) s *= 2;
  return s;
}

// First block of segment s; segment_begin(segments(blocks), blocks) is the end of the row.
STRATA_HD constexpr int segment_begin(int s, int blocks) {
  return static_cast<int>(static_cast<int64_t>(s) * blocks / segments(blocks));
}

// One block of 32 in a segment's chain. What the format stores once per 32 weights is folded into the float scale w
// (a half times a small integer: exact); what it stores per 16 stays in the exact integer sum. A segment's chain and the
// total over segments start at +0: total = (((0 + chain 0) + chain 1) + ...).
STRATA_HD float dot_step(int32_t sum, float w, float d_a, float y) {
  return fma32(static_cast<float>(sum), w * d_a, y);
}

// The minimum's term, after the block's dot_step, in formats with one minimum per 32: m (sign folded in, exact) times
// the block's activation sum. Two minimums per 32 (Q2_K): dot_step(m0 * sum16_0 + m1 * sum16_1, dmin, d_a, y).
STRATA_HD float min_step(float m, int32_t sum, float d_a, float y) {
  return fma32(m, static_cast<float>(sum) * d_a, y);
}

// ---- activation blocks -----------------------------------------------------------------------------------------

// Scale of a block whose largest magnitude is amax; blocks below 1e-30 count as zero so that 127 / amax is finite.
STRATA_HD float block_scale(float amax) { return amax < 1e-30f ? 0.0f : div32(amax, 127.0f); }
STRATA_HD float block_inverse(float amax) { return amax < 1e-30f ? 0.0f : div32(127.0f, amax); }
STRATA_HD int8_t block_code(float x, float inverse) { return static_cast<int8_t>(rint32(x * inverse)); }

// ---- router ----------------------------------------------------------------------------------------------------

// Sorts by descending x, ties to the lower index: the k largest keys, in descending order, are the top k. A total
// order, so any algorithm gives the same answer. Non-finite x is a fault.
STRATA_HD uint64_t topk_key(float x, uint32_t index) {
  const uint32_t u = float_bits(x + 0.0f);  // -0 becomes +0
  const uint32_t ordered = u & 0x80000000u ? ~u : u | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - index);
}
STRATA_HD uint32_t topk_index(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// Weights of the top k: e_r = exp32(x_r - x_0), w_r = e_r / lane sum of the e (over the k when renormalised, else over
// all experts). Rows of experts are combined in rank order: out = fma(w_r, y_r, out), r ascending from out = +0.
STRATA_HD float combine_step(float weight, float row, float out) { return fma32(weight, row, out); }

// ---- attention, step form --------------------------------------------------------------------------------------
//
// Cells are split by absolute position, 256 a split (with selected blocks: by index in the ascending list of selected
// cells, which is the same when every cell is selected). Within a split s, cell j = 0 .. 255:
//   score_j = lane dot(q, k_j) * scale          lanes are d mod 32
//   m_s     = max of the visible score_j;  p_j = exp32(score_j - m_s), 0 for cells that are not visible
//   l_s     = lane sum of p_j, o_s[d] = lane dot(p, v[., d])     lanes are j mod 32, invisible cells leave a lane alone
// Splits with a visible cell are combined in ascending order under one maximum M = max m_s:
//   a_s = exp32(m_s - M);  L = fma(l_s, a_s, L);  O[d] = fma(o_s[d], a_s, O[d]);  out[d] = O[d] / L
STRATA_HD int attention_split(int64_t position) { return static_cast<int>(position / kAttentionSplit); }

// ---- delta rule, step form -------------------------------------------------------------------------------------
//
// State of a value head: S[v][k], k contiguous. Per column v (lanes are k mod 32):
//   S[v][k] = decay * S[v][k];  d = beta * (x_v - lane dot(S[v], k));  S[v][k] = fma(k_k, d, S[v][k])
//   o_v = lane dot(S[v], q)
// with decay = exp32(g), g = -exp(A) * softplus32(a + dt); beta = sigmoid32(b).
STRATA_HD float delta_error(float beta, float value, float read) { return beta * (value - read); }

// ---- random numbers --------------------------------------------------------------------------------------------

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
STRATA_HD void philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_lo), c1 = static_cast<uint32_t>(counter_lo >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_hi), c3 = static_cast<uint32_t>(counter_hi >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0, p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// Uniform in (0, 1), 23 bits, never 0 or 1: with 24 the added half would not be representable and could round to 1.
STRATA_HD float uniform23(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 1.1920928955078125e-7f;
}

}  // namespace strata
