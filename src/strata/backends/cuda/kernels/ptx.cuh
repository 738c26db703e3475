// PTX (with wgmma.cuh): dependent launch, flags, byte tricks, tensor cores, asynchronous copies. On the emulated device
// (tests/emulate) another header gives the same functions.
#pragma once

#include "strata/contract.h"

// Dynamic shared memory of the launch, bytes on a border of 16.
#define STRATA_DYNAMIC_SHARED(name) extern __shared__ __align__(16) uint8_t name[]

namespace strata {

// Programmatic dependent launch: `wait` before the first read of what an earlier node wrote, `launch` to let the next
// node start. Without the launch attribute both do nothing.
__device__ __forceinline__ void dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// When this thread block passes `point` (0 .. 13): the multiprocessor's clock, where a source is compiled with STRATA_TRACE, the address of
// 16 words of 8 bytes a thread block (scripts/gpu_check/trace.py). Word 15: the multiprocessor + 1.
__device__ __forceinline__ void trace(int point) {
#ifdef STRATA_TRACE
  if (threadIdx.x != 0) return;
  const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  uint64_t* at = reinterpret_cast<uint64_t*>(STRATA_TRACE) + 16 * block;
  uint32_t processor;
  asm volatile("mov.u32 %0, %smid;" : "=r"(processor));
  at[point] = clock64(), at[15] = processor + 1;
#endif
}

// From here on a kernel may read and write what no launch but its predecessor touches: where each launch calls
// dependency_launch only after dependency_wait, all before the predecessor are complete.
__device__ __forceinline__ void dependency_settled() {}

// Flags shared with the host or with other thread blocks.
__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release_system(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire_device(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release_device(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Until bit 16 of *phases is another than `parity`: barriers in shared memory where the device has none (wgmma.cuh).
__device__ __forceinline__ void arrived_at_phase() {}
__device__ __forceinline__ void wait_for_phase(const uint32_t* phases, uint32_t parity) {
  while ((*static_cast<const volatile uint32_t*>(phases) >> 16 & 1u) == parity) continue;
}

// The compiler may not know what p was: addresses of a loop's turns are added up, not all kept in registers.
template <class T> __device__ __forceinline__ void add_up(T*& p) { asm volatile("" : "+l"(p)); }

// Every byte filled with its top bit (__byte_perm has no sign mode).
__device__ __forceinline__ uint32_t spread_signs(uint32_t v) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(v));
  return mask;
}

// Byte i: the one that the low three bits of nibble i of `selector` name, of a's and then b's. Bit 3 of each must be clear, which
// __byte_perm takes an instruction to see to.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// int8 m16n8k32 and m16n8k16 with int32 sums; before sm_80 the same fragments go through m8n8k16.
// d = a * b + c, every element of c the same.
__device__ __forceinline__ void mma_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int c) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(c));
#else
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
      : "=r"(d[0]), "=r"(d[1]) : "r"(a0), "r"(b), "r"(c));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
      : "=r"(d[2]), "=r"(d[3]) : "r"(a1), "r"(b), "r"(c));
#endif
}

__device__ __forceinline__ void mma_full(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int c) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
#else
  mma_half(d, a[0], a[1], b0, c);
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(d[0]), "+r"(d[1]) : "r"(a[2]), "r"(b1));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(d[2]), "+r"(d[3]) : "r"(a[3]), "r"(b1));
#endif
}

// Two halves a word: sums, products, fused products.
__device__ __forceinline__ uint32_t add_halves(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t multiply_halves(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* p) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], const void* p) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

// Where shared memory lies in its own space.
__device__ __forceinline__ uint32_t shared_offset(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Global to shared memory; asynchronous from sm_80 on, complete after copies_wait and a barrier.
template <int Bytes> __device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from));
  }
#else
  if constexpr (Bytes == 16) {
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  } else {
    *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
  }
#endif
}
// Asks for `bytes` (a multiple of 16) at `from` to be brought to the device's cache; called by all threads of a thread block.
__device__ __forceinline__ void fetch_to_cache(const uint8_t* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#else
  for (uint32_t i = 128 * threadIdx.x; i < bytes; i += 128 * blockDim.x)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from + i)));
#endif
}
// The same of the line of 128 bytes that `from` lies in; by one thread.
__device__ __forceinline__ void fetch_line(const uint8_t* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// In groups: a thread's copies since its last group; waiting leaves the newest `Left` groups on their way.
__device__ __forceinline__ void copies_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int Left> __device__ __forceinline__ void copies_wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

// ---- 16-bit floats on tensor cores: 16 rows x 8 columns, 16 deep, d += a * b with float32 sums ----------------------

// Two floats, rounded to nearest even, in a word: x below.
__device__ __forceinline__ uint32_t pack_f16(float x, float y) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
#else
  uint16_t a, b;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(x));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(y));
  return a | static_cast<uint32_t>(b) << 16;
#endif
}

__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// load_matrices of matrices that are turned on their way: lane 4 g + t gets rows 2 t, 2 t + 1 of column g.
__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], const void* p) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// Four int8 codes (code + 128 in a byte) to two words of two halves each, exactly.
__device__ __forceinline__ void code_halves(uint32_t codes, uint32_t& low, uint32_t& high) {
  low = __byte_perm(codes, 0x64646464u, 0x4140), high = __byte_perm(codes, 0x64646464u, 0x4342);  // 1024 + code + 128
  asm("{sub.rn.f16x2 %0, %0, %2; sub.rn.f16x2 %1, %1, %2;}" : "+r"(low), "+r"(high) : "r"(0x64806480u));
}

}  // namespace strata

#include "wgmma.cuh"
