// What every kernel uses: warp sums in the contract's order, int8 products, dependent launch, system-scope flags.
#pragma once

#include "strata/contract.h"

namespace strata {

constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) & 31; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) >> 5; }

// tree_sum over a warp whose lane l holds lane l; every lane gets the sum (float addition commutes).
__device__ __forceinline__ float warp_tree_sum(float x) {
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) x = x + __shfl_xor_sync(kFullWarp, x, half);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, half));
  return x;
}

__device__ __forceinline__ int dot4(uint32_t a, uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

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
__device__ __forceinline__ uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

}  // namespace strata
