// Tensor cores of a whole warpgroup (sm_90a): 64 rows of A, in registers or shared memory, times 32 to 160 columns of B in shared memory, asynchronous. On
// every other architecture, and on the emulated device, the same fragments go through mma.sync; ptx.cuh includes this file.
//
// B (and A there): columns of 64 f16 values along K, 128 bytes a column from a border of 1,024 bytes on, 16-byte parts of column c at
// part ^ c % 8.
#pragma once

namespace strata {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define STRATA_WGMMA 1
#else
#define STRATA_WGMMA 0
#endif

#if STRATA_WGMMA

// What shared memory holds is for the tensor cores to see: after a thread's writes or copies, before the barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the newest `Left` groups of products are done; c is theirs.
template <int Left, int N> __device__ __forceinline__ void products_wait(float (&c)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");  // nothing reads them before
}

// Columns of B, or rows of A, in shared memory: the lower half of what tells the tensor cores where they lie. A warp's lanes agree on it, so that it
// has a uniform register and a place further on costs one addition.
struct SharedLines {
  uint32_t low;
  static __device__ __forceinline__ SharedLines from(const void* p) {
    return {__shfl_sync(0xffffffffu, static_cast<uint32_t>(__cvta_generic_to_shared(p)) >> 4 | 1u << 16, 0)};
  }
  // So many bytes further on, a multiple of 1,024.
  __device__ __forceinline__ SharedLines at(int bytes) const { return {low + static_cast<uint32_t>(bytes >> 4)}; }
  __device__ __forceinline__ uint64_t descriptor(int slice) const { return uint64_t(1) << 62 | uint64_t(64) << 32 | (low + 2 * slice); }
};

// c = a * b + (more ? c : 0) for 16 values along K from value 16 * `slice` of the 64 on; 32 columns.
__device__ __forceinline__ void group_product(float (&c)[16], const uint32_t (&a)[4], const SharedLines& b, int slice, bool more) {
  const uint64_t descriptor = b.descriptor(slice);
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(int(more)));
}

// d = a * b + (more ? d : 0) for 16 values along K, both operands in shared memory: 64 rows of a, N columns of b, each as
// `group_product` has its columns. d[4 j + e]: row g + 8 (e / 2) of 16 at column 8 j + 2 t + e % 2.
template <int N> __device__ __forceinline__ void tile_product(float (&d)[N / 2], const SharedLines& a, const SharedLines& b, int slice, bool more) {
  if constexpr (N == 64) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31])
        : "l"(a.descriptor(slice)), "l"(b.descriptor(slice)), "r"(int(more)));
  } else if constexpr (N == 128) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a.descriptor(slice)), "l"(b.descriptor(slice)), "r"(int(more)));
  } else if constexpr (N == 160) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\nwgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        : "l"(a.descriptor(slice)), "l"(b.descriptor(slice)), "r"(int(more)));
  } else {
    static_assert(N < 0, "a shape that nothing asks for yet");
  }
}

#else

__device__ __forceinline__ void publish_shared() {}
__device__ __forceinline__ void products_fence() {}
__device__ __forceinline__ void products_commit() {}
template <int Left, int N> __device__ __forceinline__ void products_wait(float (&)[N]) {}

struct SharedLines {
  const uint8_t* first;
  static __device__ __forceinline__ SharedLines from(const void* p) { return {static_cast<const uint8_t*>(p)}; }
  __device__ __forceinline__ SharedLines at(int bytes) const { return {first + bytes}; }
};

template <int N>
__device__ __forceinline__ void group_product(float (&c)[N], const uint32_t (&a)[4], const SharedLines& b, int slice, bool more) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int j = 0; j < N / 4; j += 2) {
    const int column = 8 * j + lane / 16 * 8 + lane % 8, part = 2 * slice + lane / 8 % 2;
    uint32_t two[4];
    load_matrices(two, b.first + column * 128 + (part ^ column % 8) * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float d[4] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (more) d[e] = c[4 * (j + i) + e];
      mma_f16(d, a, two[2 * i], two[2 * i + 1]);
#pragma unroll
      for (int e = 0; e < 4; ++e) c[4 * (j + i) + e] = d[e];
    }
  }
}

template <int N> __device__ __forceinline__ void tile_product(float (&d)[N / 2], const SharedLines& a, const SharedLines& b, int slice, bool more) {
  const int lane = static_cast<int>(threadIdx.x) & 31, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16;
  uint32_t fragment[4];
  load_matrices(fragment, a.first + row * 128 + ((2 * slice + lane / 16) ^ row % 8) * 16);
  group_product(d, fragment, b, slice, more);
}

#endif

// ---- barriers in shared memory -------------------------------------------------------------------------------------------------------

// `count` arrivals end a phase and begin the next; phases are told apart by their parity, the first is 0.
#if !defined(STRATA_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

#if __CUDA_ARCH__ >= 900
#define STRATA_TEST_WAIT "try_wait"
#else
#define STRATA_TEST_WAIT "test_wait"
#endif

struct Barrier {
  uint64_t state;
  __device__ __forceinline__ void init(uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_offset(this)), "r"(count) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(shared_offset(this)) : "memory");
  }
  // Until the phase of that parity is over.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier." STRATA_TEST_WAIT ".parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}\n"
                 ::"r"(shared_offset(this)), "r"(parity) : "memory");
  }
};

#else

struct Barrier {
  uint32_t count, state;  // phases << 16 | arrivals of this phase
  __device__ __forceinline__ void init(uint32_t arrivals) { count = arrivals, state = 0; }
  __device__ __forceinline__ void arrive() {
    __threadfence_block();
    if ((atomicAdd(&state, 1u) & 0xffffu) + 1 == count) atomicAdd(&state, 0x10000u - count);
    arrived_at_phase();
  }
  __device__ __forceinline__ void wait(uint32_t parity) {
    wait_for_phase(&state, parity);
    __threadfence_block();
  }
};

#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define STRATA_MOVES_REGISTERS 1
#else
#define STRATA_MOVES_REGISTERS 0
#endif

// Registers of a thread from here on, for all threads of a warpgroup; the thread block's sum stays what it began with.
template <int Registers> __device__ __forceinline__ void registers_grow() {
#if STRATA_MOVES_REGISTERS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers> __device__ __forceinline__ void registers_shrink() {
#if STRATA_MOVES_REGISTERS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

}  // namespace strata
