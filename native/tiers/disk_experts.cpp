#include "tiers/disk_experts.h"

#include <algorithm>

namespace strata::tiers {

namespace {
constexpr uint64_t kProbeEvery = 16;  // steps from one that is made the other way to the next
constexpr double kMemory = 0.8;       // weight of the past in what steps lose
}  // namespace

void Guesses::guess(int32_t layer, std::vector<int32_t> experts, uint64_t took_ns) {
  guessed_[static_cast<size_t>(layer)] = std::move(experts);
  guess_ns_ += took_ns;
}

void Guesses::routed(int32_t layer, const std::vector<int32_t>& experts) {
  if (layer <= last_) close_step();
  last_ = layer;
  distinct_ += experts.size();
  std::vector<int32_t>& guessed = guessed_[static_cast<size_t>(layer)];
  if (guessed.empty()) return;
  uint64_t right = 0;
  for (const int32_t expert : experts) right += std::binary_search(guessed.begin(), guessed.end(), expert);
  counters_->add(kLookaheadGuesses, guessed.size()), counters_->add(kLookaheadRight, right);
  counters_->add(kLookaheadRouted, experts.size());
  guessed.clear();
}

void Guesses::close_step() {
  const uint64_t waited = counters_->get(kReadWaitNs);
  const double lost = static_cast<double>(waited - waited_before_ + guess_ns_) / static_cast<double>(std::max<uint64_t>(distinct_, 1));
  double& mean = lost_[active_ ? 1 : 0];
  mean = mean == 0 ? lost : kMemory * mean + (1 - kMemory) * lost;
  if (!active_) counters_->add(kLookaheadHeld);
  const bool better = lost_[1] <= lost_[0] || lost_[0] == 0;
  active_ = better != (++step_ % kProbeEvery == 0);
  waited_before_ = waited, distinct_ = guess_ns_ = 0;
}

DiskExperts::DiskExperts(std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store,
                         std::shared_ptr<Guesses> guesses, int32_t layer, ExpertKernels kernels, uint64_t limit_ns)
    : pool_(std::move(pool)),
      store_(std::move(store)),
      guesses_(std::move(guesses)),
      layer_(layer),
      kernels_(kernels),
      limit_ns_(limit_ns) {
  plane_scales(kernels_, scales_);
}

// A step that is already void reads nothing more.
void DiskExperts::begin(uint32_t fault) {
  const int32_t* offsets = kernels_.offsets();
  experts_.clear();
  for (int32_t e = 0; e < kernels_.num_experts(); ++e)
    if (offsets[e + 1] > offsets[e]) experts_.push_back(e);
  done_.assign(experts_.size(), 0), taken_.resize(experts_.size());
  count_ = 0, first_ = true, fault_ = fault;
  Counters& counters = store_->counters();
  counters.add(kDistinct, experts_.size()), counters.add(kRoutedPairs, static_cast<uint64_t>(offsets[kernels_.num_experts()]));
  guesses_->routed(layer_, experts_);
}

void DiskExperts::next() {
  count_ = store_->take(layer_, experts_.data(), experts_.size(), done_.data(), taken_.data(), first_, limit_ns_, &fault_);
  first_ = false;
  batch_.clear();
  const LayerSource& source = store_->layers()[static_cast<size_t>(layer_)];
  const int32_t *pairs = kernels_.pairs(), *offsets = kernels_.offsets();
  for (size_t i = 0; i < count_; ++i) {
    const int32_t e = experts_[static_cast<size_t>(taken_[i])];
    const uint64_t address[3] = {source.tables[0][e], source.tables[1][e], source.tables[2][e]};
    batch_.add(pairs + offsets[e], offsets[e + 1] - offsets[e], address, scales_, e);
  }
}

void DiskExperts::end_batch() {
  for (size_t i = 0; i < count_; ++i) store_->release(layer_, experts_[static_cast<size_t>(taken_[i])]);
  Counters& counters = store_->counters();
  counters.add(kCpuExperts, count_), counters.add(kComputedPairs, batch_.pairs.size());
  counters.add(kCpuBytes, count_ * store_->expert_bytes(layer_));
}

void DiskExperts::run(const Op& op, int thread, int threads) {
  DiskExperts& self = *op.at<DiskExperts>(0);
  if (thread == 0) self.begin(op.faults->load() >> kTierFaultShift);
  for (;;) {
    if (thread == 0) self.next();
    self.pool_->barrier();
    if (self.count_ == 0) break;
    Op record = self.batch_.gate_up(self.kernels_);
    record.faults = op.faults;
    record.run(record, thread, threads);
    self.pool_->barrier();
    record = self.batch_.down(self.kernels_);
    record.faults = op.faults;
    record.run(record, thread, threads);
    self.pool_->barrier();
    if (thread == 0) self.end_batch();
  }
  if (thread == 0 && self.fault_ != 0) op.fault(static_cast<strata::Fault>(self.fault_ << kTierFaultShift));
}

LookaheadStep::LookaheadStep(std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store,
                             std::shared_ptr<Guesses> guesses, const Recorded& product, int32_t layer, int32_t experts,
                             int32_t k, int32_t max_rows)
    : pool_(std::move(pool)),
      store_(std::move(store)),
      guesses_(std::move(guesses)),
      product_(product.op),
      layer_(layer),
      num_experts_(experts),
      k_(k),
      live_(product.op.at<const int32_t>(0)),
      logits_(static_cast<size_t>(experts) * static_cast<size_t>(max_rows)) {
  const int out = product_.ptr[5] != 0 ? 5 : 3;  // linear_q has the planes of its rows before the weight, linear_f one
  product_.ptr[out] = reinterpret_cast<uint64_t>(logits_.data());
}

void LookaheadStep::choose() {
  std::vector<uint64_t> keys(static_cast<size_t>(num_experts_));
  std::vector<int32_t> experts;
  for (int32_t r = 0; r < *live_; ++r) {
    const float* row = logits_.data() + static_cast<int64_t>(r) * num_experts_;
    for (int32_t e = 0; e < num_experts_; ++e) keys[static_cast<size_t>(e)] = topk_key(row[e], static_cast<uint32_t>(e));
    std::nth_element(keys.begin(), keys.begin() + k_ - 1, keys.end(), std::greater<>());
    for (int32_t i = 0; i < k_; ++i) experts.push_back(static_cast<int32_t>(topk_index(keys[static_cast<size_t>(i)])));
  }
  std::sort(experts.begin(), experts.end());
  experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
  store_->prefetch(layer_, experts.data(), experts.size());
  guesses_->guess(layer_, std::move(experts), now_ns() - began_);
}

void LookaheadStep::run(const Op& op, int thread, int threads) {
  LookaheadStep& self = *op.at<LookaheadStep>(0);
  if (!self.guesses_->active()) return;
  if (thread == 0) self.began_ = now_ns();
  Op record = self.product_;
  record.faults = op.faults;
  record.run(record, thread, threads);
  self.pool_->barrier();
  if (thread == 0) self.choose();
}

}  // namespace strata::tiers
