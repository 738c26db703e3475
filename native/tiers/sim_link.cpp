#include "tiers/sim_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace strata::tiers {

SimLink::SimLink(ExpertStore* store, double rate, bool exclusive, uint64_t limit_ns, Counters* counters)
    : store_(store), rate_(rate), exclusive_(exclusive), limit_ns_(limit_ns), counters_(counters) {
  thread_ = std::thread([this] { work(); });
}

SimLink::~SimLink() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    stop_ = true;
  }
  inject(LinkFault::kNone);
  some_.notify_all();
  thread_.join();
}

void SimLink::copy(int32_t layer, int32_t expert, uint32_t slot, uint64_t address) {
  const std::lock_guard<std::mutex> hold(lock_);
  promotions_.push_back({layer, expert, 0, slot, address, nullptr});
  some_.notify_one();
}

void SimLink::stream(int32_t layer, int32_t expert, uint32_t n, uint32_t* fault) {
  const std::lock_guard<std::mutex> hold(lock_);
  step_.push_back({layer, expert, n, 0, 0, fault});
  some_.notify_one();
}

void SimLink::cancel() {
  const std::lock_guard<std::mutex> hold(lock_);
  step_.clear();
}

void SimLink::inject(LinkFault fault) {
  fault_.store(static_cast<uint32_t>(fault));
  fault_.notify_all();
}

void SimLink::stall() {
  if (fault_.load() == static_cast<uint32_t>(LinkFault::kStall)) fault_.wait(static_cast<uint32_t>(LinkFault::kStall));
}

void SimLink::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> hold(lock_);
      some_.wait(hold, [&] { return stop_ || !step_.empty() || !promotions_.empty(); });
      if (stop_) return;
      std::deque<Job>& queue = step_.empty() ? promotions_ : step_;
      job = queue.front();
      queue.pop_front();
    }
    stall();
    run(job);
  }
}

void SimLink::run(const Job& job) {
  if (job.number == 0) {
    uint32_t fault = 0;
    residency_->arrived(job.slot, move(job, job.address, &fault));
    return;
  }
  if (!wait_for_place(job) || !move(job, staging_place(staging_, job.number), job.fault)) return;
  store_release(staging_.arrived + (job.number - 1) % staging_.slots, job.number);
}

// The place's last copy must have been used.
bool SimLink::wait_for_place(const Job& job) {
  const uint32_t needed = job.number - std::min(job.number, staging_.slots);
  return wait_for(staging_.released, needed, limit_ns_, job.fault);
}

// All planes of the expert to `to`, at the link's rate.
bool SimLink::move(const Job& job, uint64_t to, uint32_t* fault) {
  uint8_t done = 0;
  int32_t batch;
  if (store_->take(job.layer, &job.expert, 1, &done, &batch, true, limit_ns_, fault) == 0) return false;
  const LayerSource& layer = store_->layers()[static_cast<size_t>(job.layer)];
  const Blob blob(layer);
  for (int p = 0; p < kPlanes; ++p)
    memcpy(reinterpret_cast<void*>(to + blob.offset[p]), reinterpret_cast<const void*>(layer.tables[p][job.expert]),
           layer.planes[p].bytes);
  store_->release(job.layer, job.expert);
  if (job.number == 0 && exclusive_) store_->give_up(job.layer, job.expert);
  if (rate_ > 0) {
    free_at_ = std::max(free_at_, now_ns()) + static_cast<uint64_t>(static_cast<double>(blob.bytes) / rate_ * 1e9);
    const uint64_t now = now_ns();
    if (free_at_ > now) std::this_thread::sleep_for(std::chrono::nanoseconds(free_at_ - now));
  }
  return true;
}

}  // namespace strata::tiers
