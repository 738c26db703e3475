// The CPU's two expert products over any part of a layer's experts, wherever their bytes lie.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/op.h"

namespace strata::tiers {

// A lowered op record: expert_gate_up or expert_down with the program's addresses and sizes.
struct Recorded {
  Op op{};
  // std::invalid_argument when there is no such kernel or a count is not its own.
  Recorded(const std::string& kind, const std::vector<uint64_t>& ptrs, const std::vector<int64_t>& dims);
};

// Both products of one layer; places of pointers and sizes as native/cpu/kernels/experts.cpp documents them.
class ExpertKernels {
 public:
  ExpertKernels(const Recorded& gate_up, const Recorded& down) : gate_up_(gate_up.op), down_(down.op) {}

  const int32_t* pairs() const { return gate_up_.at<const int32_t>(0); }
  const int32_t* offsets() const { return gate_up_.at<const int32_t>(1); }
  int32_t num_experts() const { return static_cast<int32_t>(gate_up_.dim[4]); }
  int32_t k() const { return static_cast<int32_t>(gate_up_.dim[5]); }
  int64_t hidden() const { return gate_up_.dim[2]; }
  int64_t inner() const { return gate_up_.dim[3]; }
  const Op& gate_up() const { return gate_up_; }
  const Op& down() const { return down_; }

 private:
  Op gate_up_, down_;
};

// A list of experts with their pairs and addresses, as the kernels take it: a stack of its own.
struct ExpertBatch {
  std::vector<int32_t> pairs, offsets{0};
  std::vector<uint64_t> tables[3];
  std::vector<float> scales[3];

  void clear();
  // `scale[p]`: of plane p, 0 for none.
  void add(const int32_t* pairs, int32_t count, const uint64_t address[3], const float* const scale[3], int32_t expert);
  size_t size() const { return offsets.size() - 1; }

  // Records over this batch instead of the whole layer; they point into the batch.
  Op gate_up(const ExpertKernels& kernels) const;
  Op down(const ExpertKernels& kernels) const;
};

// The planes' scales of a layer.
void plane_scales(const ExpertKernels& kernels, const float* scales[3]);

// Units that a record is cut into: calling it as thread u of `units` computes unit u alone.
int32_t gate_up_units(const ExpertKernels& kernels, int32_t pairs);
int32_t down_units(const ExpertKernels& kernels, int32_t pairs);

}  // namespace strata::tiers
