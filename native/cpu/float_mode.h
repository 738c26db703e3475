// The contract's float mode: round to nearest, subnormals kept, exceptions masked.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strata {

// Sets the mode for this thread and restores the former one at the end of the scope.
class FloatMode {
 public:
  FloatMode() : saved_(read()) { write(kContract); }
  ~FloatMode() { write(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kContract = 0x1f80;  // MXCSR at power-up
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kContract = 0;  // FPCR
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
#error "float mode of this processor is not known"
#endif
  uint64_t saved_;
};

}  // namespace strata
