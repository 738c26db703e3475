#include "tiers/policy.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace strata::tiers {

namespace {
constexpr auto kPause = std::chrono::microseconds(200);
constexpr double kMostCredit = 0.25;  // seconds of the link that a quiet time may save up
constexpr size_t kPromptShare = 4;    // a layer of which more than one in four experts are used is a prompt's: it says little
constexpr size_t kWantedAtOnce = 48;  // choosing victims takes about a millisecond, however many

std::vector<uint64_t> bytes_by_expert(const SlotTable& r) {
  std::vector<uint64_t> bytes;
  for (int32_t layer = 0; layer < r.num_layers(); ++layer)
    bytes.insert(bytes.end(), static_cast<size_t>(r.num_experts()), r.expert_bytes(layer));
  return bytes;
}

}  // namespace

Policy::Policy(std::shared_ptr<PolicyDevice> device, PolicyOptions options)
    : device_(std::move(device)),
      options_(options),
      bytes_(bytes_by_expert(device_->slot_table())),
      reuse_(bytes_.size()),
      reader_(&device_->routes()),
      coming_(device_->slot_table().slots().size(), Seat::kEmpty),
      moved_at_(now_ns()) {}

Policy::~Policy() { stop(); }

ReuseModel::State Policy::state() {
  const std::lock_guard<std::mutex> lock(lock_);
  return reuse_.state();
}

std::vector<uint32_t> Policy::restore(const ReuseModel::State& state, size_t most) {
  const std::lock_guard<std::mutex> lock(lock_);
  reuse_.restore(state);
  std::vector<uint32_t> order(bytes_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::vector<float> scores;
  for (const uint32_t e : order) scores.push_back(reuse_.score(e));
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  const auto known = std::find_if(order.begin(), order.end(), [&](uint32_t e) { return scores[e] <= -1.0f; });
  order.resize(std::min(most, static_cast<size_t>(known - order.begin())));
  return order;
}

void Policy::start() {
  stop_ = false;
  thread_ = std::thread([this] { work(); });
}

void Policy::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Policy::work() {
  std::vector<RouteRecord> records;
  while (!stop_) {
    records.clear();
    lost_ += reader_.read(records);
    take(records);
    promote_waiting();
    if (records.empty()) {
      finish_layer();
      if (layer_ == device_->slot_table().num_layers() - 1) swap();
      // An epoch that has ended and left no more records is complete.
      if (begun_ && device_->slot_table().ended() == epoch_) finish_step();
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Policy::take(const std::vector<RouteRecord>& records) {
  const auto experts = static_cast<uint32_t>(device_->slot_table().num_experts());
  for (const RouteRecord& r : records) {
    if (r.epoch != epoch_ && begun_) finish_step();
    if (r.layer != layer_) finish_layer();
    epoch_ = r.epoch, layer_ = r.layer, begun_ = true;
    used_.push_back(r.layer * experts + r.expert);
    if (r.place != kHit) missed_.push_back(used_.back());
  }
}

void Policy::finish_layer() {
  if (used_.size() * kPromptShare > static_cast<size_t>(device_->slot_table().num_experts())) {
    prompt_ = true;
  } else if (!used_.empty()) {
    const std::lock_guard<std::mutex> lock(lock_);
    for (const uint32_t e : used_) reuse_.use(e);
    wanted_.insert(wanted_.end(), missed_.begin(), missed_.end());
  }
  used_.clear();
  missed_.clear();
  if (wanted_.size() >= kWantedAtOnce) swap();
}

void Policy::finish_step() {
  finish_layer();
  swap();
  {
    const std::lock_guard<std::mutex> lock(lock_);
    reuse_.end_step();
  }
  (prompt_ ? skipped_ : steps_)++;
  begun_ = prompt_ = false;
  layer_ = -1;
}

// Bytes that promotions may move now: what the link could have carried since it was last asked, less what steps copied.
uint64_t Policy::allowance() {
  if (options_.link_rate <= 0) return ~uint64_t{0};
  const uint64_t now = now_ns(), copied = device_->counters().get(kCopyBytes);
  credit_ += static_cast<double>(now - moved_at_) * 1e-9 * options_.link_rate - static_cast<double>(copied - step_bytes_);
  credit_ = std::min(credit_, options_.link_rate * kMostCredit);
  moved_at_ = now, step_bytes_ = copied;
  return credit_ > 0 ? static_cast<uint64_t>(credit_) : 0;
}

std::vector<Seat> Policy::seats() const {
  const auto experts = device_->slot_table().num_experts();
  std::vector<Seat> seats;
  for (const Slot& s : device_->slot_table().slots()) {
    const bool kept = coming_[seats.size()] != Seat::kEmpty;
    int64_t holds = Seat::kBusy;
    if (!kept && s.state == kFree) holds = Seat::kEmpty;
    if (!kept && s.state == kResident && device_->slot_table().may_move(s.layer)) holds = int64_t{s.layer} * experts + s.expert;
    seats.push_back({s.bytes, holds});
  }
  return seats;
}

void Policy::swap() {
  if (wanted_.empty()) return;
  SlotTable& residency = device_->slot_table();
  const int32_t experts = residency.num_experts();
  std::vector<uint32_t> wanted;
  for (const uint32_t e : wanted_) {
    const bool coming = num_coming_ > 0 && std::find(coming_.begin(), coming_.end(), int64_t{e}) != coming_.end();
    const auto layer = static_cast<int32_t>(e) / experts, expert = static_cast<int32_t>(e) % experts;
    if (!coming && residency.may_move(layer) && residency.slot_of(layer, expert) < 0) wanted.push_back(e);
  }
  wanted_.clear();
  std::vector<Swap> swaps;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    swaps = choose_swaps(reuse_, bytes_, wanted, seats(), {allowance(), options_.gain});
  }
  for (const Swap& s : swaps)
    if (ask(s)) credit_ -= static_cast<double>(bytes_[s.expert]);
  promote_waiting();
}

// False where somebody else was there first.
bool Policy::ask(const Swap& s) {
  SlotTable& residency = device_->slot_table();
  const int32_t experts = residency.num_experts();
  const auto layer = static_cast<int32_t>(s.expert) / experts, expert = static_cast<int32_t>(s.expert) % experts;
  if (s.victim == Seat::kEmpty) return residency.promote(layer, expert, s.slot);
  if (residency.replaces()) return residency.replace(layer, expert, s.slot);
  const auto victim = static_cast<int32_t>(s.victim);
  if (!residency.retire(victim / experts, victim % experts)) return false;
  coming_[s.slot] = s.expert, ++num_coming_;
  return true;
}

void Policy::promote_waiting() {
  SlotTable& residency = device_->slot_table();
  const int32_t experts = residency.num_experts();
  for (uint32_t slot = 0; num_coming_ > 0 && slot < coming_.size(); ++slot) {
    if (coming_[slot] == Seat::kEmpty || residency.state(slot) != kFree) continue;
    const auto e = static_cast<int32_t>(coming_[slot]);
    residency.promote(e / experts, e % experts, slot);  // refused: someone else brought it meanwhile
    coming_[slot] = Seat::kEmpty, --num_coming_;
  }
}

}  // namespace strata::tiers
