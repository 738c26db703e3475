// The CPU's side of the contract's experiments, for ctypes: portable reference, packed AVX-512 products, timing on threads.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "free_order.h"
#include "packed_avx512.h"

using namespace strata;

namespace {

// y[rows, n] of GGUF rows, one block at a time: the contract as it reads.
template <QuantType T>
void reference(const uint8_t* raw, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
  const int blocks = k / 32, per = Layout<T>::values / 32, segs = segments(blocks);
  for (int i = 0; i < n; ++i)
    for (int m = 0; m < rows; ++m) {
      float total = 0.0f;
      for (int s = 0; s < segs; ++s) {
        float chain = 0.0f;
        for (int b = segment_begin(s, blocks); b < segment_begin(s + 1, blocks); ++b) {
          Block32 w;
          Format<T>::block32(raw + (static_cast<size_t>(i) * blocks / per + b / per) * Layout<T>::bytes, b % per, w);
          chain = dot32<T>(w, q + static_cast<size_t>(m) * k + 32 * b, sums + static_cast<size_t>(m) * k / 16 + 2 * b,
                           d[m * blocks + b], chain);
        }
        total += chain;
      }
      y[static_cast<size_t>(m) * n + i] = total;
    }
}

template <QuantType T>
void packed(const uint8_t* w, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
  const int blocks = k / 32;
  static const simd::Rows<T> format;
  static simd::Activation a;
  for (int m = 0; m < rows; ++m) {
    simd::prepare<T>(q + static_cast<size_t>(m) * k, d + m * blocks, sums + static_cast<size_t>(m) * k / 16, blocks, a);
    for (int i = 0; i < n; i += 16) simd::rows16<T>(format, w, n, blocks, i, a, y + static_cast<size_t>(m) * n + i);
  }
}

// Seconds for `threads` threads to go once over `copies` matrices one after another at w, rows split evenly.
template <QuantType T, bool Free>
double sweep(const uint8_t* w, size_t bytes, int copies, int n, int k, const int8_t* q, const float* d, const int16_t* sums,
             int threads, float* y) {
  const int blocks = k / 32;
  static const simd::Rows<T> format;
  static simd::Activation a;
  simd::prepare<T>(q, d, sums, blocks, a);
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) _mm_pause();
      for (int c = 0; c < copies; ++c)
        for (int i = n / 16 * t / threads; i < n / 16 * (t + 1) / threads; ++i) {
          if constexpr (Free) simd::rows16_free<T>(format, w + c * bytes, n, blocks, 16 * i, a, y + 16 * i);
          else simd::rows16<T>(format, w + c * bytes, n, blocks, 16 * i, a, y + 16 * i);
        }
    });
  while (ready.load() < threads) _mm_pause();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  for (auto& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

#define FOR_TYPE(type, call)                                         \
  switch (static_cast<QuantType>(type)) {                            \
    case QuantType::IQ3_XXS: call(IQ3_XXS); break;                   \
    case QuantType::Q2_0: call(Q2_0); break;                         \
    case QuantType::Q6_K: call(Q6_K); break;                         \
    case QuantType::Q4_K: call(Q4_K); break;                         \
    case QuantType::IQ2_S: call(IQ2_S); break;                       \
    case QuantType::NVFP4: call(NVFP4); break;                       \
    default: break;                                                  \
  }

}  // namespace

extern "C" {

void contract_quantize(const float* x, int rows, int k, int8_t* q, float* d, int16_t* sums) {
  for (int b = 0; b < rows * (k / 32); ++b) {
    float amax = 0.0f;
    for (int j = 0; j < 32; ++j) amax = std::fabs(x[32 * b + j]) > amax ? std::fabs(x[32 * b + j]) : amax;
    const float inverse = block_inverse(amax);
    d[b] = block_scale(amax);
    for (int h = 0; h < 2; ++h) {
      int sum = 0;
      for (int j = 16 * h; j < 16 * h + 16; ++j) sum += q[32 * b + j] = block_code(x[32 * b + j], inverse);
      sums[2 * b + h] = static_cast<int16_t>(sum);
    }
  }
}

void contract_reference(int type, const uint8_t* raw, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
#define CALL(T) reference<QuantType::T>(raw, n, k, q, d, sums, rows, y)
  FOR_TYPE(type, CALL)
#undef CALL
}

void contract_packed(int type, const uint8_t* w, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
#define CALL(T) packed<QuantType::T>(w, n, k, q, d, sums, rows, y)
  FOR_TYPE(type, CALL)
#undef CALL
}

double contract_sweep(int type, int free_order, const uint8_t* w, int64_t bytes, int copies, int n, int k, const int8_t* q,
                      const float* d, const int16_t* sums, int threads, float* y) {
  double seconds = 0;
  const size_t size = static_cast<size_t>(bytes);
#define CALL(T)                                                                                           \
  seconds = free_order ? sweep<QuantType::T, true>(w, size, copies, n, k, q, d, sums, threads, y)         \
                       : sweep<QuantType::T, false>(w, size, copies, n, k, q, d, sums, threads, y)
  FOR_TYPE(type, CALL)
#undef CALL
  return seconds;
}

// Seconds for `threads` threads to read `bytes` once (64-byte loads, contiguous shares): the ceiling of a sweep.
double contract_read(const uint8_t* w, int64_t bytes, int threads, uint64_t* sink) {
  std::vector<std::thread> pool;
  std::atomic<uint64_t> all{0};
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) _mm_pause();
      __m512i x[4] = {};
      const int64_t lines = bytes / 256;
      for (int64_t i = lines * t / threads; i < lines * (t + 1) / threads; ++i)
        for (int j = 0; j < 4; ++j) x[j] = _mm512_xor_si512(x[j], _mm512_loadu_si512(w + 256 * i + 64 * j));
      all += static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(x[0], x[1]), _mm512_xor_si512(x[2], x[3]))));
    });
  while (ready.load() < threads) _mm_pause();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  for (auto& thread : pool) thread.join();
  *sink = all;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Elementwise functions: 0 exp32, 1 log32, 2 sigmoid32, 3 silu32, 4 softplus32.
void contract_map(int function, const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    switch (function) {
      case 0: y[i] = exp32(x[i]); break;
      case 1: y[i] = log32(x[i]); break;
      case 2: y[i] = sigmoid32(x[i]); break;
      case 3: y[i] = silu32(x[i]); break;
      default: y[i] = softplus32(x[i]); break;
    }
  }
}

}  // extern "C"
