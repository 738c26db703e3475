#include "tiers/sim_device.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace strata::tiers {

namespace {
constexpr uint32_t kRouteRecords = 1u << 16;

uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

std::vector<uint64_t> blob_bytes(const ExpertStore& store) {
  std::vector<uint64_t> bytes;
  for (const LayerSource& layer : store.layers()) bytes.push_back(Blob(layer).bytes);
  return bytes;
}
}  // namespace

SimDevice::SimDevice(std::shared_ptr<ExpertStore> store, const SimOptions& options)
    : store_(std::move(store)), options_(options), split_(options.cpu_share), arrived_(options.staging, 0),
      records_(kRouteRecords) {
  const std::vector<uint64_t> bytes = blob_bytes(*store_);
  const uint64_t place = line_up(*std::max_element(bytes.begin(), bytes.end()));
  uint64_t total = place * options.staging;
  for (const uint64_t slot : options.slots) total += line_up(slot);
  arena_ = std::make_unique<TierMemory>(total, false);
  staging_ = {address(arena_->data()), place, options.staging, arrived_.data(), &released_};
  uint64_t at = staging_.address + place * options.staging;
  std::vector<Slot> slots;
  for (const uint64_t slot : options.slots) {
    slots.push_back({at, slot, kFree, 0, -1, -1});
    at += line_up(slot);
  }
  limits_ = {options.rows, options.k, options.hidden, options.experts};
  mapped_ = std::make_unique<TierMemory>(mailbox_view(0, limits_, &box_), false);
  mailbox_view(address(mapped_->data()), limits_, &box_);
  ring_ = {address(records_.data()), kRouteRecords, 0};
  Counters& counters = store_->counters();
  link_ = std::make_unique<SimLink>(store_.get(), options.link_rate, options.exclusive, options.limit_ns, &counters);
  residency_ = std::make_unique<Residency>(bytes, options.experts, std::move(slots), link_.get(), &counters);
  link_->attach(residency_.get(), staging_);
  workers_ = std::make_unique<Workers>(WorkerOptions{options.workers, options.inner, options.limit_ns}, store_.get(), box_,
                                       limits_, &fault_, &kernel_faults_);
  thread_ = std::thread([this] { work(); });
}

SimDevice::~SimDevice() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  raise(&fault_, kWaitExpired);  // whoever still waits for a step that nobody runs gives up
  workers_.reset();
  link_.reset();
}

uint32_t SimDevice::run(Program& program, int64_t begin, int64_t end) {
  const std::lock_guard<std::mutex> one(running_);
  Job job{&program, begin, end, 0, {}};
  std::unique_lock<std::mutex> hold(lock_);
  job_ = &job;
  changed_.notify_all();
  changed_.wait(hold, [&] { return job_ == nullptr; });
  if (!job.error.empty()) throw std::runtime_error(job.error);
  return job.faults;
}

void SimDevice::work() {
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    changed_.wait(hold, [&] { return stop_ || job_ != nullptr; });
    if (stop_) return;
    Job& job = *job_;
    hold.unlock();
    replay(job);
    hold.lock();
    job_ = nullptr;
    changed_.notify_all();
  }
}

void SimDevice::replay(Job& job) {
  __atomic_store_n(&fault_, 0, __ATOMIC_RELEASE);
  kernel_faults_.store(0);
  expert_ns_ = miss_bytes_ = 0, split_open_ = false;
  epoch_ = residency_->begin_step();
  workers_->wake();
  try {
    job.faults = job.program->run(job.begin, job.end);
  } catch (const std::exception& error) {
    job.error = error.what();
  }
  workers_->rest();
  residency_->end_step();
  if (split_open_) split_.end_step(expert_ns_, miss_bytes_);
  job.faults |= kernel_faults_.load() | load_acquire(&fault_) << kTierFaultShift;
  store_->counters().add(kSteps);
  if (job.faults != 0) settle_fault();
}

// Copies that did not come are forgotten: later ones have other numbers. What a late worker owes it still delivers.
void SimDevice::settle_fault() {
  raise(&fault_, kWaitExpired);
  link_->cancel();
  store_release(&released_, copies_);
  store_->counters().add(kVoidSteps);
}

void SimDevice::record(int32_t layer, const ExpertUse& use) {
  records_[ring_.written & (kRouteRecords - 1)] = {epoch_, static_cast<uint16_t>(layer), static_cast<uint16_t>(use.expert),
                                                   static_cast<uint16_t>(std::min(use.count, 65535)),
                                                   static_cast<uint16_t>(use.place)};
  store_release(&ring_.written, ring_.written + 1);
}

}  // namespace strata::tiers
