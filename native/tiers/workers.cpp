#include "tiers/workers.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "cpu/float_mode.h"

namespace strata::tiers {

namespace {
constexpr float kNewest = 0.05f;  // weight of a list in what lists cost
constexpr float kForgive = 0.002f;  // of what is known to be slow is forgotten a replay: who gets no list tells nothing
constexpr int kSpins = 2'000;  // turns of polling before a thread that has nothing to do naps
constexpr auto kNap = std::chrono::microseconds(50);
constexpr unsigned long kSlackNs = 1'000;  // by which a nap may last longer; the system's own 50 us would double it
constexpr uint64_t kPollNs = 5'000'000;    // how long a thread polls where a device may post at any time, about a step; then it naps, or sleeps when nothing runs
enum ExpertState : uint32_t { kUnknown, kPinned, kLost };

uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }
}  // namespace

Workers::Workers(const WorkerOptions& options, ExpertStore* store, const MailboxView& box, const MailboxLimits& limits,
                 uint32_t* fault, std::atomic<uint32_t>* kernel_faults)
    : store_(store),
      box_(box),
      limits_(limits),
      options_(options),
      limit_ns_(options.limit_ns),
      fault_(fault),
      kernel_faults_(kernel_faults),
      layers_(store->layers().size()) {
  const uint64_t values = static_cast<uint64_t>(limits.rows) * static_cast<uint64_t>(limits.k) * static_cast<uint64_t>(options.inner);
  scales_at_ = line_up(values), sums_at_ = scales_at_ + line_up(values / 8);
  inner_.resize(std::max(values * 4, sums_at_ + line_up(values / 8)) + 64);
  for (int32_t i = 0; i < limits.experts; ++i) items_.push_back(std::make_unique<Item>());
  alive_.store(options.threads);
  box_.head->workers = static_cast<uint32_t>(options.threads);
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() { end(); }

void Workers::end() {
  if (stop_.exchange(1) != 0) return;
  inject(WorkerFault::kNone, 0);
  wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::set_layer(int32_t layer, const ExpertKernels& kernels) { layers_[static_cast<size_t>(layer)] = kernels; }

uint32_t Workers::wake() {
  const uint32_t number = wakes_.fetch_add(1) + 1;
  wakes_.notify_all();
  active_.store(1);
  active_.notify_all();
  return number;
}

uint32_t Workers::started() {
  const float slower = slower_.load(std::memory_order_relaxed);
  if (slower > 1.0f) tell_cost(slower + kForgive * (1.0f - slower));
  return wake();
}

void Workers::finished(uint32_t number) { finished_.store(number); }

void Workers::rest() { active_.store(0); }

void Workers::inject(WorkerFault fault, uint32_t after) {
  after_.store(after);
  injected_.store(static_cast<uint32_t>(fault));
  injected_.notify_all();
}

void Workers::lag() {
  if (injected_.load(std::memory_order_relaxed) == static_cast<uint32_t>(WorkerFault::kLag) && after_.fetch_add(1) % 3 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(300));
}

// True when the planted fault struck this thread; a stall ends when the fault is taken back.
bool Workers::stalled(bool* die) {
  const uint32_t fault = injected_.load(std::memory_order_relaxed);
  if (fault == 0 || fault == static_cast<uint32_t>(WorkerFault::kLag) || after_.fetch_sub(1) != 0) return false;
  *die = fault == static_cast<uint32_t>(WorkerFault::kDie);
  if (*die) injected_.store(0);
  if (!*die) injected_.wait(fault);
  return true;
}

// A device may post at any moment while something runs: then naps, however long it takes.
bool Workers::idle(Idle& idle) {
  const int turn = idle.turn++;
  if (!options_.polling) {
    if (active_.load(std::memory_order_acquire) == 0 && stop_.load() == 0) active_.wait(0);
    turn < kSpins ? relax(turn) : std::this_thread::sleep_for(kNap);
    return stop_.load(std::memory_order_relaxed) == 0;
  }
  const uint64_t now = now_ns();
  if (turn == 0) idle.since = now;
  if (now - idle.since < kPollNs) {
    relax(turn);
  } else if (const uint32_t wakes = wakes_.load(); finished_.load() == wakes) {
    if (stop_.load() == 0) wakes_.wait(wakes);
    idle.turn = 0;
  } else {
    std::this_thread::sleep_for(kNap);
  }
  return stop_.load(std::memory_order_relaxed) == 0;
}

void Workers::work() {
  const FloatMode mode;
  prctl(PR_SET_TIMERSLACK, kSlackNs);
  Idle idling;
  while (idle(idling)) {
    const uint32_t n = load_acquire(&box_.head->posted);
    if (n == load_acquire(&box_.head->served)) continue;
    lag();
    open(n);
    int32_t unit;
    while (claim(n, &unit)) {
      idling.turn = 0;
      bool die = false;
      if (stalled(&die) && die) {
        box_.head->workers = static_cast<uint32_t>(alive_.fetch_sub(1) - 1);
        return;
      }
      run(n, unit);
    }
  }
}

// The first thread to see a list cuts it into units.
void Workers::open(uint32_t n) {
  const std::lock_guard<std::mutex> hold(opening_);
  if (static_cast<int32_t>(n - opened_) <= 0) return;  // a thread that was held up may come with an old list
  const Mailbox& head = *box_.head;
  const ExpertKernels& kernels = *layers_[static_cast<size_t>(head.layer)];
  opened_at_ = now_ns();
  const auto bytes = static_cast<float>(store_->expert_bytes(head.layer));
  units_ = 0, expected_ns_ = 0;
  parts_.clear();
  std::vector<int32_t> experts;
  for (int32_t i = 0; i < head.items; ++i) {
    prepare(*items_[static_cast<size_t>(i)], box_.items[i], kernels);
    append(i, false);
    if (!options_.polling) append(i, true);
    experts.push_back(box_.items[i].expert);
    expected_ns_ += bytes * (costs_.cpu_byte + static_cast<float>(box_.items[i].count) * costs_.cpu_row_byte);
  }
  for (int32_t i = 0; options_.polling && i < head.items; ++i) append(i, true);
  items_left_.store(head.items);
  store_->prefetch(head.layer, experts.data(), experts.size());
  opened_ = n;
  ticket_.store(static_cast<uint64_t>(n) << 32, std::memory_order_release);
}

void Workers::append(int32_t item, bool down) {
  const Item& of = *items_[static_cast<size_t>(item)];
  parts_.push_back({units_, item, down});
  units_ += down ? of.down_units : 1 + of.gate_units;
}

void Workers::prepare(Item& item, const MailboxItem& posted, const ExpertKernels& kernels) {
  item.gate_units = gate_up_units(kernels, posted.count), item.down_units = down_units(kernels, posted.count);
  item.state.store(kUnknown), item.gate_left.store(item.gate_units), item.down_left.store(item.down_units);
  item.batch.clear();
  const float* scales[kPlanes];
  plane_scales(kernels, scales);
  const uint64_t unknown[kPlanes] = {};
  item.batch.add(box_.pairs + posted.first, posted.count, unknown, scales, posted.expert);
  const auto given = [](uint64_t old, const void* now) { return old == 0 ? 0 : address(now); };
  item.gate_up = item.batch.gate_up(kernels), item.down = item.batch.down(kernels);
  Op &g = item.gate_up, &d = item.down;
  g.ptr[2] = given(g.ptr[2], box_.x), g.ptr[3] = given(g.ptr[3], box_.codes);
  g.ptr[4] = given(g.ptr[4], box_.scales), g.ptr[5] = given(g.ptr[5], box_.sums);
  const uint8_t* inner = inner_.data() + (64 - address(inner_.data()) % 64) % 64;
  g.ptr[10] = address(inner), g.ptr[11] = given(g.ptr[11], inner + scales_at_);
  g.ptr[12] = given(g.ptr[12], inner + sums_at_);
  d.ptr[2] = given(d.ptr[2], inner), d.ptr[3] = given(d.ptr[3], inner);
  d.ptr[4] = given(d.ptr[4], inner + scales_at_), d.ptr[5] = given(d.ptr[5], inner + sums_at_);
  d.ptr[8] = address(box_.out);
  g.faults = d.faults = kernel_faults_;
}

bool Workers::claim(uint32_t n, int32_t* unit) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    if (ticket >> 32 != n || static_cast<int32_t>(ticket & 0xffffffffu) >= units_) return false;
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) break;
  }
  *unit = static_cast<int32_t>(ticket & 0xffffffffu);
  return true;
}

void Workers::find(Item& item, const MailboxItem& posted) {
  uint8_t done = 0;
  int32_t batch;
  const int32_t layer = box_.head->layer;
  const bool found = store_->take(layer, &posted.expert, 1, &done, &batch, true, limit_ns_, fault_) == 1;
  const LayerSource& source = store_->layers()[static_cast<size_t>(layer)];
  for (int p = 0; found && p < kPlanes; ++p) item.batch.tables[p][0] = source.tables[p][posted.expert];
  item.state.store(found ? kPinned : kLost, std::memory_order_release);
}

void Workers::run(uint32_t n, int32_t unit) {
  size_t at = 0;
  while (at + 1 < parts_.size() && parts_[at + 1].first <= unit) ++at;
  const Part part = parts_[at];
  if (part.down) return run_down(n, part.item, unit - part.first);
  run_gate_up(*items_[static_cast<size_t>(part.item)], box_.items[part.item], unit - part.first - 1);
}

void Workers::run_gate_up(Item& item, const MailboxItem& posted, int32_t part) {
  if (part < 0) return find(item, posted);
  for (int turn = 0; item.state.load(std::memory_order_acquire) == kUnknown; ++turn)
    if (stop_.load() != 0) return;
    else relax(turn);
  if (item.state.load() == kPinned) item.gate_up.run(item.gate_up, part, item.gate_units);
  item.gate_left.fetch_sub(1, std::memory_order_acq_rel);
}

void Workers::run_down(uint32_t n, int32_t index, int32_t part) {
  Item& item = *items_[static_cast<size_t>(index)];
  for (int turn = 0; item.gate_left.load(std::memory_order_acquire) > 0; ++turn)
    if (stop_.load() != 0) return;
    else relax(turn);
  if (item.state.load() == kPinned) item.down.run(item.down, part, item.down_units);
  if (item.down_left.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(n, index);
}

void Workers::set_costs(const MissCosts& alone) {
  costs_ = alone;
  if (options_.told != nullptr) *options_.told = alone;
  slower_.store(1.0f);
}

// A list is done: what it took beside what the costs say.
void Workers::learn_cost() {
  if (expected_ns_ <= 0.0f) return;
  const float now = static_cast<float>(now_ns() - opened_at_) / expected_ns_, slower = slower_.load(std::memory_order_relaxed);
  tell_cost(slower + kNewest * (std::clamp(now, 0.5f, 2.0f * slower) - slower));
}

void Workers::tell_cost(float slower) {
  slower_.store(slower, std::memory_order_relaxed);
  if (options_.told == nullptr) return;
  options_.told->cpu_byte = costs_.cpu_byte * slower, options_.told->cpu_row_byte = costs_.cpu_row_byte * slower;
}

void Workers::report_faults() {
  const uint32_t bits = options_.fault_words == nullptr ? 0 : kernel_faults_->exchange(0);
  for (int bit = 0; bits >> bit != 0; ++bit)
    if ((bits >> bit & 1u) != 0) *const_cast<volatile uint32_t*>(options_.fault_words + bit) = 1;
}

void Workers::finish(uint32_t n, int32_t index) {
  report_faults();
  Item& item = *items_[static_cast<size_t>(index)];
  const int32_t layer = box_.head->layer;
  if (item.state.load() == kPinned) {
    store_->release(layer, box_.items[index].expert);
    Counters& counters = options_.counters == nullptr ? store_->counters() : *options_.counters;
    counters.add(kCpuExperts), counters.add(kCpuBytes, store_->expert_bytes(layer));
    counters.add(kComputedPairs, item.batch.pairs.size());
  }
  // A device that has seen every item may post again: the list is told as served before its last item is.
  if (items_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    learn_cost();
    store_release(&box_.head->served, n);
  }
  store_release(box_.served_items + index, n);
}

}  // namespace strata::tiers
