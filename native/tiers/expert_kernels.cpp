#include "tiers/expert_kernels.h"

#include <stdexcept>

#include "cpu/dispatch.h"

namespace strata::tiers {

namespace {
constexpr int64_t kUnitFeatures = 64, kUnitRows = 128;  // native/cpu/kernels/experts.cpp

int32_t units(int64_t pairs, int64_t features) {
  return static_cast<int32_t>((pairs + kUnitRows - 1) / kUnitRows * ((features + kUnitFeatures - 1) / kUnitFeatures));
}

uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }
}  // namespace

Recorded::Recorded(const std::string& kind, const std::vector<uint64_t>& ptrs, const std::vector<int64_t>& dims) {
  const KernelEntry* kernel = find_kernel(kind);
  if (kernel == nullptr) throw std::invalid_argument("no kernel is named '" + kind + "'");
  if (ptrs.size() != static_cast<size_t>(kernel->ptrs) || dims.size() != static_cast<size_t>(kernel->dims))
    throw std::invalid_argument("kernel '" + kind + "' takes " + std::to_string(kernel->ptrs) + " pointers and " +
                                std::to_string(kernel->dims) + " dims");
  op.run = kernel->run;
  for (size_t i = 0; i < ptrs.size(); ++i) op.ptr[i] = ptrs[i];
  for (size_t i = 0; i < dims.size(); ++i) op.dim[i] = dims[i];
}

void ExpertBatch::clear() {
  pairs.clear();
  offsets.assign(1, 0);
  for (int p = 0; p < 3; ++p) tables[p].clear(), scales[p].clear();
}

void ExpertBatch::add(const int32_t* from, int32_t count, const uint64_t at[3], const float* const scale[3],
                      int32_t expert) {
  pairs.insert(pairs.end(), from, from + count);
  offsets.push_back(static_cast<int32_t>(pairs.size()));
  for (int p = 0; p < 3; ++p) {
    tables[p].push_back(at[p]);
    if (scale[p] != nullptr) scales[p].push_back(scale[p][expert]);
  }
}

Op ExpertBatch::gate_up(const ExpertKernels& kernels) const {
  Op op = kernels.gate_up();
  op.ptr[0] = address(pairs.data()), op.ptr[1] = address(offsets.data());
  op.ptr[6] = address(tables[0].data()), op.ptr[7] = address(tables[1].data());
  if (op.ptr[8] != 0) op.ptr[8] = address(scales[0].data());
  if (op.ptr[9] != 0) op.ptr[9] = address(scales[1].data());
  op.dim[4] = static_cast<int64_t>(size());
  return op;
}

Op ExpertBatch::down(const ExpertKernels& kernels) const {
  Op op = kernels.down();
  op.ptr[0] = address(pairs.data()), op.ptr[1] = address(offsets.data());
  op.ptr[6] = address(tables[2].data());
  if (op.ptr[7] != 0) op.ptr[7] = address(scales[2].data());
  op.dim[3] = static_cast<int64_t>(size());
  return op;
}

void plane_scales(const ExpertKernels& kernels, const float* scales[3]) {
  scales[0] = kernels.gate_up().at<const float>(8), scales[1] = kernels.gate_up().at<const float>(9);
  scales[2] = kernels.down().at<const float>(7);
}

int32_t gate_up_units(const ExpertKernels& kernels, int32_t pairs) { return units(pairs, kernels.inner()); }
int32_t down_units(const ExpertKernels& kernels, int32_t pairs) { return units(pairs, kernels.hidden()); }

}  // namespace strata::tiers
