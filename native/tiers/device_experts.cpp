// The device's part of a layer: find each expert, compute hits, then what the link brought, take the workers' rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tiers/sim_device.h"

namespace strata::tiers {

DeviceExperts::DeviceExperts(std::shared_ptr<ThreadPool> pool, std::shared_ptr<SimDevice> device,
                             std::shared_ptr<Guesses> guesses, int32_t layer, ExpertKernels kernels)
    : pool_(std::move(pool)),
      device_(std::move(device)),
      guesses_(std::move(guesses)),
      layer_(layer),
      kernels_(kernels),
      blob_(device_->store().layers()[static_cast<size_t>(layer)]) {
  plane_scales(kernels_, scales_);
  device_->workers().set_layer(layer, kernels_);
}

void DeviceExperts::run(const Op& op, int thread, int threads) {
  DeviceExperts& self = *op.at<DeviceExperts>(0);
  if (thread == 0) self.begin(op.faults->load() >> kTierFaultShift);
  self.pool_->barrier();
  self.compute(op, thread, threads);
  self.pool_->barrier();  // without hits nobody has waited yet, and the batch is about to change
  for (;;) {
    if (thread == 0) self.batch_ready_ = self.next_copies();
    self.pool_->barrier();
    if (!self.batch_ready_) break;
    self.compute(op, thread, threads);
  }
  self.collect(thread, threads);
  if (thread == 0) self.end(op);
}

void DeviceExperts::begin(uint32_t fault) {
  const int32_t* offsets = kernels_.offsets();
  uses_.clear(), misses_.clear(), computed_.clear(), copied_.clear(), batch_.clear();
  next_copy_ = 0, posted_ = 0, pairs_done_ = 0, began_ = now_ns();
  if (fault != 0) raise(&device_->fault_, fault);
  for (int32_t e = 0; e < kernels_.num_experts(); ++e)
    if (offsets[e + 1] > offsets[e]) uses_.push_back({e, offsets[e], offsets[e + 1] - offsets[e], kCopied, 0});
  place();
  post();
  for (const size_t i : copied_) {
    uses_[i].at = ++device_->copies_;
    device_->link_->stream(layer_, uses_[i].expert, uses_[i].at, &device_->fault_);
  }
  std::vector<int32_t> routed;
  for (const ExpertUse& use : uses_) {
    routed.push_back(use.expert);
    if (use.place == kHit) add(use, device_->residency_->slot(use.at).address);
    device_->record(layer_, use);
  }
  guesses_->routed(layer_, routed);
}

// Hits by the table; misses by the split, the CPU taking those with the fewest rows.
void DeviceExperts::place() {
  Residency& residency = *device_->residency_;
  const uint32_t* table = residency.table() + static_cast<int64_t>(layer_) * residency.num_experts();
  for (size_t i = 0; i < uses_.size(); ++i) {
    const uint32_t entry = table[uses_[i].expert];
    const int32_t slot = entry_slot(entry);
    if (slot < 0) {
      misses_.push_back(i);
      continue;
    }
    const Slot& held = residency.slot(static_cast<uint32_t>(slot));
    if (held.state != kResident || held.layer != layer_ || held.expert != uses_[i].expert)
      raise(&device_->fault_, kBadEntry);
    uses_[i].place = kHit, uses_[i].at = static_cast<uint32_t>(slot);
  }
  copied_ = misses_;
  if (misses_.empty()) return;
  if (!std::exchange(device_->split_open_, true)) device_->split_.begin_step();
  std::stable_sort(misses_.begin(), misses_.end(), [&](size_t a, size_t b) { return uses_[a].count < uses_[b].count; });
  const float rows = static_cast<float>(uses_[misses_.front()].count);
  const int32_t copies = device_->split_.copies(static_cast<int32_t>(misses_.size()), blob_.bytes, rows);
  computed_.assign(misses_.begin(), misses_.end() - copies);
  std::sort(computed_.begin(), computed_.end());
}

// Posts what the mailbox holds of the CPU's share; the rest is copied. While the last list is not served, all of it.
void DeviceExperts::post() {
  const MailboxView& box = device_->box_;
  std::vector<int32_t> rows;
  box_pairs_.clear();
  int32_t items = 0;
  const bool free = load_acquire(&box.head->served) == device_->posts_;
  for (const size_t i : free ? computed_ : std::vector<size_t>()) {
    ExpertUse& use = uses_[i];
    std::vector<int32_t> with = rows;
    for (int32_t p = 0; p < use.count; ++p) with.push_back(kernels_.pairs()[use.first + p] / kernels_.k());
    std::sort(with.begin(), with.end());
    with.erase(std::unique(with.begin(), with.end()), with.end());
    if (with.size() > static_cast<size_t>(device_->limits_.rows)) continue;
    rows.swap(with);
    box.items[items] = {use.expert, static_cast<int32_t>(box_pairs_.size()), use.count, 0};
    use.place = kComputed, use.at = static_cast<uint32_t>(items++);
    box_pairs_.insert(box_pairs_.end(), kernels_.pairs() + use.first, kernels_.pairs() + use.first + use.count);
  }
  std::erase_if(copied_, [&](size_t i) { return uses_[i].place == kComputed; });
  if (items == 0) return;
  post_rows(rows);
  box.head->layer = layer_, box.head->rows = static_cast<int32_t>(rows.size()), box.head->items = items;
  posted_ = ++device_->posts_;
  store_release(&box.head->posted, posted_);
}

// The step's rows `rows` become rows 0, 1, ... of the mailbox.
void DeviceExperts::post_rows(const std::vector<int32_t>& rows) {
  const MailboxView& box = device_->box_;
  const Op& op = kernels_.gate_up();
  const int64_t hidden = kernels_.hidden();
  const auto copy = [&](void* to, int from, int64_t bytes) {
    for (size_t i = 0; op.ptr[from] != 0 && i < rows.size(); ++i)
      memcpy(static_cast<uint8_t*>(to) + static_cast<int64_t>(i) * bytes, op.at<const uint8_t>(from) + rows[i] * bytes,
             static_cast<size_t>(bytes));
  };
  copy(box.x, 2, hidden * 4), copy(box.codes, 3, hidden), copy(box.scales, 4, hidden / kBlock * 4);
  copy(box.sums, 5, hidden / 16 * 2);
  for (size_t i = 0; i < box_pairs_.size(); ++i) {
    const int32_t row = box_pairs_[i] / kernels_.k(), rank = box_pairs_[i] % kernels_.k();
    const auto place = std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
    box.pairs[i] = static_cast<int32_t>(place) * kernels_.k() + rank;
  }
}

void DeviceExperts::add(const ExpertUse& use, uint64_t blob) {
  const uint64_t at[kPlanes] = {blob + blob_.offset[0], blob + blob_.offset[1], blob + blob_.offset[2]};
  batch_.add(kernels_.pairs() + use.first, use.count, at, scales_, use.expert);
}

void DeviceExperts::compute(const Op& op, int thread, int threads) {
  if (batch_.size() == 0) return;
  Op record = batch_.gate_up(kernels_);
  record.faults = op.faults;
  record.run(record, thread, threads);
  pool_->barrier();
  record = batch_.down(kernels_);
  record.faults = op.faults;
  record.run(record, thread, threads);
  pool_->barrier();
  if (thread == 0) pairs_done_ += batch_.pairs.size();
}

// Gives back the places of the copies just used; the next batch is the next copy and those that came with it.
bool DeviceExperts::next_copies() {
  if (next_copy_ > 0) store_release(&device_->released_, uses_[copied_[next_copy_ - 1]].at);
  batch_.clear();
  const Staging& ring = device_->staging_;
  for (; next_copy_ < copied_.size() && batch_.size() < ring.slots; ++next_copy_) {
    const ExpertUse& use = uses_[copied_[next_copy_]];
    const uint32_t* flag = ring.arrived + (use.at - 1) % ring.slots;
    if (batch_.size() > 0 && load_acquire(flag) != use.at) break;
    if (!wait_for(flag, use.at, device_->options_.limit_ns, &device_->fault_)) return false;
    add(use, staging_place(ring, use.at));
  }
  return batch_.size() > 0;
}

// The workers' rows to where combine reads them.
void DeviceExperts::collect(int thread, int threads) {
  if (posted_ == 0) return;
  const MailboxView& box = device_->box_;
  if (thread == 0) wait_for(&box.head->served, posted_, device_->options_.limit_ns, &device_->fault_);
  pool_->barrier();
  if (load_acquire(&device_->fault_) != 0) return;
  const int64_t hidden = kernels_.hidden();
  const size_t n = box_pairs_.size(), begin = n * static_cast<size_t>(thread) / static_cast<size_t>(threads);
  for (size_t i = begin; i < n * static_cast<size_t>(thread + 1) / static_cast<size_t>(threads); ++i)
    memcpy(kernels_.down().at<float>(8) + box_pairs_[i] * hidden, box.out + box.pairs[i] * hidden,
           static_cast<size_t>(hidden) * sizeof(float));
}

void DeviceExperts::end(const Op& op) {
  Counters& counters = device_->store().counters();
  const uint64_t pairs = static_cast<uint64_t>(kernels_.offsets()[kernels_.num_experts()]);
  const uint64_t bytes = device_->store().expert_bytes(layer_);
  uint64_t hits = 0;
  for (const ExpertUse& use : uses_) hits += use.place == kHit;
  counters.add(kDistinct, uses_.size()), counters.add(kRoutedPairs, pairs), counters.add(kComputedPairs, pairs_done_);
  counters.add(kHits, hits), counters.add(kHitBytes, hits * bytes);
  counters.add(kCopies, copied_.size()), counters.add(kCopyBytes, copied_.size() * bytes);
  const uint32_t fault = load_acquire(&device_->fault_);
  if ((fault & kWaitExpired) != 0) counters.add(kWaitsExpired);
  if (fault == 0 && pairs_done_ + box_pairs_.size() != pairs) raise(&device_->fault_, kBadEntry);
  if (load_acquire(&device_->fault_) != 0) op.fault(static_cast<strata::Fault>(device_->fault_ << kTierFaultShift));
  device_->expert_ns_ += now_ns() - began_;
  device_->miss_bytes_ += misses_.size() * bytes;
}

}  // namespace strata::tiers
