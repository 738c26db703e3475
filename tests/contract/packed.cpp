// Packed AVX-512 products behind a C function for test_packed_products.py: one type a build (-DTYPE=...).
#include <memory>

#include "packed_avx512.h"

using namespace strata;

extern "C" int supported() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

template <QuantType T>
static void run(const uint8_t* w, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
  const simd::Rows<T> format{};
  const auto a = std::make_unique<simd::Activation>();
  for (int m = 0; m < rows; ++m) {
    simd::prepare<T>(q + m * k, d + m * (k / 32), sums + m * (k / 16), k / 32, *a);
    for (int i = 0; i < n; i += 16) simd::rows16<T>(format, w, n, k / 32, i, *a, y + m * n + i);
  }
}

extern "C" void product(int type, const uint8_t* w, int n, int k, const int8_t* q, const float* d, const int16_t* sums, int rows, float* y) {
  switch (static_cast<QuantType>(type)) {
    case QuantType::IQ3_XXS: return run<QuantType::IQ3_XXS>(w, n, k, q, d, sums, rows, y);
    case QuantType::Q2_0: return run<QuantType::Q2_0>(w, n, k, q, d, sums, rows, y);
    case QuantType::Q6_K: return run<QuantType::Q6_K>(w, n, k, q, d, sums, rows, y);
    case QuantType::Q4_K: return run<QuantType::Q4_K>(w, n, k, q, d, sums, rows, y);
    case QuantType::IQ2_S: return run<QuantType::IQ2_S>(w, n, k, q, d, sums, rows, y);
    case QuantType::NVFP4: return run<QuantType::NVFP4>(w, n, k, q, d, sums, rows, y);
    default: return;
  }
}
