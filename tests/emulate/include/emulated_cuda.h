// CUDA's built-ins for g++: kernels compile as they stand and run on fibers, one a thread of the thread block being run
// (runtime.cpp). Included before everything else. Built-ins that kernels do not use are absent.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__ __attribute__((used, visibility("default"), noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static const
#define __restrict__ __restrict

namespace emulated {

struct Dim3 {
  unsigned x, y, z;
};

// Waits for all lanes of `mask`; then `run` sees every lane's payload, once.
using WarpOp = void (*)(void** payloads, uint32_t mask);
extern "C" void emulated_warp(uint32_t mask, void* payload, WarpOp run);
// Waits for the thread block; the number of threads whose predicate holds.
extern "C" int emulated_barrier(int predicate);
// Lets other threads of the thread block run: inside loops that wait for them.
extern "C" void emulated_yield();
// Waits until bit 16 of *phases is another than `parity`: barriers in shared memory (wgmma.cuh `Barrier`).
extern "C" void emulated_phase(const uint32_t* phases, uint32_t parity);
// A thread arrived at such a barrier: others may run before it goes on.
extern "C" void emulated_arrived();
// The launch's dynamic shared memory.
extern "C" void* emulated_dynamic_shared();
// What griddepcontrol.wait does: until here a kernel may not touch what earlier launches wrote.
extern "C" void emulated_dependency_wait();
// What griddepcontrol.launch_dependents does, and ptx.cuh `dependency_settled`.
extern "C" void emulated_dependency_launch();
extern "C" void emulated_dependency_settled();
// Asynchronous copies (copies.cpp).
extern "C" void emulated_copy(void* to, const void* from, int nbytes);
extern "C" void emulated_copy_group();
extern "C" void emulated_copy_wait(int left);
// Ends the launch with an error.
extern "C" [[noreturn]] void emulated_fail(const char* why);
// Products of a warp's tiles (emulated_ptx.h `MmaLane`, `FloatMmaLane`).
extern "C" void emulated_multiply_int8(void** lanes, uint32_t mask);
extern "C" void emulated_multiply_f16(void** lanes, uint32_t mask);

template <class... A> void call(void (*kernel)(A...), void** params) {
  [&]<size_t... I>(std::integer_sequence<size_t, I...>) { kernel(*static_cast<std::remove_cvref_t<A>*>(params[I])...); }
  (std::make_integer_sequence<size_t, sizeof...(A)>{});
}

}  // namespace emulated

extern emulated::Dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// ---- vector types ----------------------------------------------------------------------------------------------

#define EMULATED_VECTORS(T, name, size)                                  \
  struct alignas(2 * size) name##2 { T x, y; };                          \
  struct name##3 { T x, y, z; };                                         \
  struct alignas(4 * size) name##4 { T x, y, z, w; };                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(unsigned, uint, 4)
EMULATED_VECTORS(int, int, 4)
EMULATED_VECTORS(float, float, 4)
EMULATED_VECTORS(short, short, 2)
EMULATED_VECTORS(unsigned short, ushort, 2)
EMULATED_VECTORS(signed char, char, 1)
EMULATED_VECTORS(unsigned char, uchar, 1)
#undef EMULATED_VECTORS

// ---- scalars ---------------------------------------------------------------------------------------------------

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *static_cast<const volatile T*>(p); }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline uint32_t __float_as_uint(float x) { return __builtin_bit_cast(uint32_t, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(uint32_t x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __popcll(uint64_t x) { return __builtin_popcountll(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7u) & 255u) << 8 * i;
  return out;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
  return c;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32); }

// ---- atomics and fences (thread blocks run one after another) --------------------------------------------------

template <class T, class F> inline T emulated_update(T* p, F f) {
  const T old = *p;
  *p = f(old);
  return old;
}
template <class T> inline T atomicAdd(T* p, std::type_identity_t<T> v) { return emulated_update(p, [v](T o) { return o + v; }); }
template <class T> inline T atomicOr(T* p, std::type_identity_t<T> v) { return emulated_update(p, [v](T o) { return o | v; }); }
template <class T> inline T atomicMax(T* p, std::type_identity_t<T> v) { return emulated_update(p, [v](T o) { return o < v ? v : o; }); }
template <class T> inline T atomicMin(T* p, std::type_identity_t<T> v) { return emulated_update(p, [v](T o) { return v < o ? v : o; }); }
template <class T> inline T atomicExch(T* p, std::type_identity_t<T> v) { return emulated_update(p, [v](T) { return v; }); }
template <class T> inline T atomicCAS(T* p, std::type_identity_t<T> was, std::type_identity_t<T> v) {
  return emulated_update(p, [=](T o) { return o == was ? v : o; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { emulated::emulated_yield(); }

// ---- barriers and warps ----------------------------------------------------------------------------------------

inline void __syncthreads() { emulated::emulated_barrier(0); }
inline int __syncthreads_count(int predicate) { return emulated::emulated_barrier(predicate); }
inline int __syncthreads_or(int predicate) { return emulated::emulated_barrier(predicate) != 0; }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  emulated::emulated_warp(mask, nullptr, [](void**, uint32_t) {});
}

namespace emulated {

// A lane's value and the lane it reads; `value` becomes what it read. Lanes outside the mask keep their own.
template <class T> struct Shuffle {
  T value, result;
  int from;
};
template <class T> inline T shuffle(uint32_t mask, T value, int from) {
  Shuffle<T> mine{value, value, from};
  emulated_warp(mask, &mine, [](void** lanes, uint32_t all) {
    for (int i = 0; i < 32; ++i) {
      if (!(all >> i & 1u)) continue;
      auto* to = static_cast<Shuffle<T>*>(lanes[i]);
      if (!(all >> to->from & 1u)) emulated_fail("a shuffle reads a lane that its mask leaves out");
      to->result = static_cast<Shuffle<T>*>(lanes[to->from])->value;
    }
  });
  return mine.result;
}
inline int lane() { return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31; }

// A value that becomes f over all lanes' values.
template <class T, class F> inline T reduce(uint32_t mask, T value, F) {
  T mine = value;
  emulated_warp(mask, &mine, [](void** lanes, uint32_t all) {
    T total{};
    bool first = true;
    for (int i = 0; i < 32; ++i)
      if (all >> i & 1u) {
        const T v = *static_cast<T*>(lanes[i]);
        total = first ? v : F{}(total, v);
        first = false;
      }
    for (int i = 0; i < 32; ++i)
      if (all >> i & 1u) *static_cast<T*>(lanes[i]) = total;
  });
  return mine;
}
struct Larger {
  template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};
struct Smaller {
  template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Sum {
  template <class T> T operator()(T a, T b) const { return a + b; }
};
struct Or {
  template <class T> T operator()(T a, T b) const { return a | b; }
};

}  // namespace emulated

template <class T> inline T __shfl_xor_sync(uint32_t mask, T v, int bits, int = 32) { return emulated::shuffle(mask, v, emulated::lane() ^ bits); }
template <class T> inline T __shfl_sync(uint32_t mask, T v, int from, int width = 32) {
  return emulated::shuffle(mask, v, (emulated::lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T __shfl_down_sync(uint32_t mask, T v, int by, int width = 32) {
  const int at = emulated::lane() % width + by;
  return emulated::shuffle(mask, v, at < width ? emulated::lane() + by : emulated::lane());
}
template <class T> inline T __shfl_up_sync(uint32_t mask, T v, int by, int width = 32) {
  const int at = emulated::lane() % width - by;
  return emulated::shuffle(mask, v, at >= 0 ? emulated::lane() - by : emulated::lane());
}
inline uint32_t __ballot_sync(uint32_t mask, int p) { return emulated::reduce(mask, p ? 1u << emulated::lane() : 0u, emulated::Or{}); }
inline int __any_sync(uint32_t mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(uint32_t mask, int p) { return __ballot_sync(mask, p) == mask; }
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t v) { return emulated::reduce(mask, v, emulated::Larger{}); }
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t v) { return emulated::reduce(mask, v, emulated::Smaller{}); }
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t v) { return emulated::reduce(mask, v, emulated::Sum{}); }
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t v) { return emulated::reduce(mask, v, emulated::Or{}); }
