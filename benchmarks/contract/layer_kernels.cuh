// Entry points of the layer experiment.
#pragma once

#include "experts.cuh"

using namespace strata;

extern "C" {

__global__ void __launch_bounds__(256) layer_router(const float* x, const float* w, float* logits, int8_t* q, float* d, int16_t* s) {
  router(x, w, logits, q, d, s);
}

__global__ void __launch_bounds__(256) layer_select(const float* logits, const int32_t* residency, const uint64_t* slots,
                                                    const uint64_t* sources, const uint64_t* staging, int to_cpu, const uint32_t* step,
                                                    const int8_t* q, const float* d, const int16_t* s, Mailbox* mailbox, PlanEntry* plan,
                                                    int32_t* ids) {
  select(logits, residency, slots, sources, staging, to_cpu, step, q, d, s, mailbox, plan, ids);
}

__global__ void __launch_bounds__(kGateUpThreads) layer_gate_up(const PlanEntry* plan, int copies, const int8_t* q, const float* d,
                                                                const int16_t* s, uint32_t* arrived, uint32_t* ready,
                                                                const uint32_t* step, uint32_t* fault, int8_t* hq, float* hd,
                                                                int16_t* hs) {
  gate_up(plan, copies, q, d, s, arrived, ready, step, fault, hq, hd, hs);
}

__global__ void __launch_bounds__(kDownThreads) layer_down(const PlanEntry* plan, const int8_t* hq, const float* hd, const int16_t* hs,
                                                           float* rows) {
  down(plan, hq, hd, hs, rows);
}

__global__ void __launch_bounds__(256) layer_combine(const PlanEntry* plan, const float* rows, const Mailbox* mailbox,
                                                     const uint32_t* step, uint32_t* fault, float* x) {
  combine(plan, rows, mailbox, step, fault, x);
}

// The first node of a step: x = start, the step's number, no fault.
__global__ void step_begin(const float* start, float* x, uint32_t* step, uint32_t* fault) {
  dependency_launch();
  dependency_wait();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kHidden) x[i] = start[i];
  if (i == 0) *step += 1, *fault = 0;
}

// A node that does nothing but keep its place in the chain.
__global__ void empty_node(float* x) {
  dependency_launch();
  dependency_wait();
  if (x == nullptr) asm volatile("trap;");
}

}  // extern "C"
