// What every kernel of an op starts from: faults, live rows, and the waiting of dependent launches.
//
// A file NAME.cu holds the entries of one op or of a few; parameters come in the order of their lowering rule. A kernel
// calls dependency_wait() before it reads or writes anything an earlier node may touch (everything but weights and
// constants), and dependency_launch() as soon as the next node may be scheduled.
#pragma once

#include "device.cuh"

namespace strata {

// Bits of native/cpu/op.h, by index: a kernel stores 1 at faults[index], which is page-locked host memory.
enum FaultIndex { kFaultNonFinite = 0, kFaultRange = 1, kFaultNoToken = 2, kFaultWait = 4, kFaultRead = 5 };

__device__ __forceinline__ void report(uint32_t* faults, FaultIndex index) { faults[index] = 1u; }

__device__ __forceinline__ bool finite32(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace strata
