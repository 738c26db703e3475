// Entry points of the layer experiment.
#pragma once

#include "experts.cuh"

using namespace strata;

extern "C" {

__global__ void __launch_bounds__(256) layer_router(const float* x, const float* w, float* logits, uint32_t* arrived, int8_t* q, float* d,
                                                    int16_t* s, const int32_t* residency, const uint64_t* slots, const uint64_t* sources,
                                                    const uint64_t* staging, int to_cpu, const uint32_t* step, Mailbox* mailbox,
                                                    PlanEntry* plan, int32_t* ids) {
  router(x, w, 1e-6f, logits, arrived, {q, d, s}, {residency, slots, sources, staging}, to_cpu, step, mailbox, plan, ids);
}

__global__ void __launch_bounds__(kExpertThreads) layer_gate_up(const PlanEntry* plan, int copies, int8_t* q, float* d, int16_t* s,
                                                                uint32_t* arrived, uint32_t* ready, const uint32_t* step,
                                                                uint32_t* fault, float* h) {
  gate_up(plan, copies, {q, d, s}, arrived, ready, step, fault, h);
}

__global__ void __launch_bounds__(kExpertThreads) layer_down(const PlanEntry* plan, const float* h, const Mailbox* mailbox,
                                                             const uint32_t* step, uint32_t* fault, uint32_t* arrived, float* rows,
                                                             float* x) {
  down(plan, h, mailbox, step, fault, arrived, rows, x);
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
