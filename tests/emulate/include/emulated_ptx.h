// What kernels/ptx.cuh says in PTX, in C++ (see there).
#pragma once

#include <ctime>

#define STRATA_DYNAMIC_SHARED(name) uint8_t* name = static_cast<uint8_t*>(emulated::emulated_dynamic_shared())

namespace strata {

inline void dependency_wait() { emulated::emulated_dependency_wait(); }
inline void dependency_launch() { emulated::emulated_dependency_launch(); }
inline void trace(int) {}
inline void dependency_settled() { emulated::emulated_dependency_settled(); }

inline uint32_t load_acquire(const uint32_t* p) {
  emulated::emulated_yield();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline uint32_t load_acquire_system(const uint32_t* p) { return load_acquire(p); }
inline uint32_t load_acquire_device(const uint32_t* p) { return load_acquire(p); }
inline void store_release_system(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void store_release_device(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline uint64_t global_timer() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

inline void arrived_at_phase() { emulated::emulated_arrived(); }
inline void wait_for_phase(const uint32_t* phases, uint32_t parity) { emulated::emulated_phase(phases, parity); }

template <class T> inline void add_up(T*&) {}

inline uint32_t spread_signs(uint32_t v) { return (v >> 7 & 0x01010101u) * 255u; }
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out = __byte_perm(a, b, selector);
  for (int i = 0; i < 4; ++i)
    if (selector >> 4 * i & 8u) out = (out & ~(255u << 8 * i)) | (spread_signs(out) & 255u << 8 * i);
  return out;
}

// A lane's registers of one int8 product of tiles, 16 rows x 8 columns, `k` values deep (16 or 32): lane 4 g + t has rows
// g and g + 8 of a, column g of b, and of d rows g, g + 8 at columns 2 t, 2 t + 1. Word i of a holds row g + 8 (i % 2),
// values 16 (i / 2) + 4 t ..; word i of b values 16 i + 4 t .. runtime.cpp multiplies.
struct MmaLane {
  int d[4];
  uint32_t a[4], b[2];
  int depth;
};
inline void mma_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int c) {
  MmaLane mine{{c, c, c, c}, {a0, a1, 0, 0}, {b, 0}, 16};
  emulated::emulated_warp(0xffffffffu, &mine, emulated::emulated_multiply_int8);
  memcpy(d, mine.d, sizeof d);
}
inline void mma_full(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int c) {
  MmaLane mine{{c, c, c, c}, {a[0], a[1], a[2], a[3]}, {b0, b1}, 32};
  emulated::emulated_warp(0xffffffffu, &mine, emulated::emulated_multiply_int8);
  memcpy(d, mine.d, sizeof d);
}

template <class F> inline uint32_t by_halves(uint32_t a, uint32_t b, uint32_t c, F f) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto half = [i](uint32_t v) { return half_float(static_cast<uint16_t>(v >> i)); };
    out |= static_cast<uint32_t>(float_half(f(half(a), half(b), half(c)))) << i;
  }
  return out;
}
inline uint32_t add_halves(uint32_t a, uint32_t b) { return by_halves(a, b, 0, [](float x, float y, float) { return x + y; }); }
inline uint32_t multiply_halves(uint32_t a, uint32_t b) { return by_halves(a, b, 0, [](float x, float y, float) { return x * y; }); }
inline uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) { return by_halves(a, b, c, [](float x, float y, float z) { return fma32(x, y, z); }); }

// Lane l gives the address of row l % 8 of matrix l / 8; lane 4 g + t gets word t of row g of every matrix.
template <int N> struct Matrices {
  const void* row;
  uint32_t r[N];
};
template <int N> inline void load_matrices(uint32_t (&r)[N], const void* p) {
  Matrices<N> mine{p, {}};
  emulated::emulated_warp(0xffffffffu, &mine, [](void** lanes, uint32_t) {
    for (int lane = 0; lane < 32; ++lane)
      for (int m = 0; m < N; ++m) {
        const void* row = static_cast<Matrices<N>*>(lanes[8 * m + lane / 4])->row;
        if (reinterpret_cast<uintptr_t>(row) % 16) emulated::emulated_fail("ldmatrix from an address that is no multiple of 16");
        memcpy(&static_cast<Matrices<N>*>(lanes[lane])->r[m], static_cast<const char*>(row) + 4 * (lane % 4), 4);
      }
  });
  memcpy(r, mine.r, sizeof r);
}

inline uint32_t shared_offset(const void* p) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)); }

template <int Bytes> inline void copy_async(void* to, const void* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % Bytes) emulated::emulated_fail("misaligned cp.async");
  emulated::emulated_copy(to, from, Bytes);
}
inline void fetch_to_cache(const uint8_t* from, uint32_t bytes) {  // no cache here, but the bytes must be there
  if (threadIdx.x == 0 && bytes > 0) *static_cast<const volatile uint8_t*>(from), *static_cast<const volatile uint8_t*>(from + bytes - 1);
}
inline void fetch_line(const uint8_t* from) { *static_cast<const volatile uint8_t*>(from); }
inline void copies_wait() { emulated::emulated_copy_wait(-1); }
inline void copies_group() { emulated::emulated_copy_group(); }
template <int Left> inline void copies_wait_for_groups() { emulated::emulated_copy_wait(Left); }

inline uint32_t pack_f16(float x, float y) { return float_half(x) | static_cast<uint32_t>(float_half(y)) << 16; }

// The same product of 16-bit floats, two to a word: word i of a holds row g + 8 (i % 2), values 8 (i / 2) + 2 t ..; word i of b
// values 8 i + 2 t .. of column g. A device adds in an order of its own; here it is that of k.
struct FloatMmaLane {
  float d[4];
  uint32_t a[4], b[2];
};
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  FloatMmaLane mine{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulated::emulated_warp(0xffffffffu, &mine, emulated::emulated_multiply_f16);
  memcpy(d, mine.d, sizeof d);
}

// Lane l gives the address of row l % 8 of matrix l / 8; lane 4 g + t gets column g's rows 2 t and 2 t + 1 of every matrix.
inline void load_matrices_turned(uint32_t (&r)[4], const void* p) {
  Matrices<4> mine{p, {}};
  emulated::emulated_warp(0xffffffffu, &mine, [](void** lanes, uint32_t) {
    for (int lane = 0; lane < 32; ++lane)
      for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const auto* row = static_cast<const uint16_t*>(static_cast<Matrices<4>*>(lanes[8 * m + 2 * (lane % 4) + e])->row);
          if (reinterpret_cast<uintptr_t>(row) % 16) emulated::emulated_fail("ldmatrix from an address that is no multiple of 16");
          pair[e] = row[lane / 4];
        }
        static_cast<Matrices<4>*>(lanes[lane])->r[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
  });
  memcpy(r, mine.r, sizeof r);
}

inline void code_halves(uint32_t codes, uint32_t& low, uint32_t& high) {
  uint16_t h[4];
  for (int i = 0; i < 4; ++i) {
    h[i] = float_half(static_cast<float>(static_cast<int>(codes >> 8 * i & 255u) - 128));
  }
  low = h[0] | static_cast<uint32_t>(h[1]) << 16, high = h[2] | static_cast<uint32_t>(h[3]) << 16;
}

}  // namespace strata

#include "wgmma.cuh"
