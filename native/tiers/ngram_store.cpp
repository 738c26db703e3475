#include "tiers/ngram_store.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "tiers/open_file.h"

namespace strata::tiers {

namespace {
constexpr uint64_t kWays = 4;
constexpr uint64_t kLoadPiece = 8u << 20, kLoaders = 7;
constexpr timespec kNap{0, 2'000'000};  // between looks for requests of a device that nobody announced

uint64_t set_of(int32_t id, uint64_t sets) { return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> 32) % sets; }
}  // namespace

NgramStore::Box::Box(uint64_t capacity, uint64_t row_bytes, void* memory) : identity_(capacity) {
  if (memory == nullptr) {
    memory_ = std::make_unique<TierMemory>(ngram_view(0, capacity, row_bytes, &view_), false);
    memory = memory_->data();
  }
  ngram_view(reinterpret_cast<uint64_t>(memory), capacity, row_bytes, &view_);
  std::iota(identity_.begin(), identity_.end(), 0);
}

NgramStore::NgramStore(const NgramTable& table, NgramMode mode, uint64_t cache_rows, int read_threads, uint64_t limit_ns,
                       std::shared_ptr<Counters> counters)
    : table_(table), mode_(mode), limit_ns_(limit_ns), counters_(std::move(counters)) {
  if (mode == NgramMode::kDirect) {
    sets_ = std::max<uint64_t>(cache_rows / kWays, 1);
    ways_.assign(sets_ * kWays, -1), next_way_.assign(sets_, 0), rows_.resize(sets_ * kWays * table.row_bytes);
  }
  open();
  try {
    if (mode == NgramMode::kRam) load();
    reader_ = std::make_unique<RowReader>(fd_, read_threads, counters_.get());
  } catch (...) {
    close(fd_);
    throw;
  }
  thread_ = std::thread([this] { serve(); });
}

void NgramStore::end() {
  stop_.store(1);
  ring();
  if (thread_.joinable()) thread_.join();
}

NgramStore::~NgramStore() {
  end();
  if (map_ != nullptr) munmap(map_, mapped_);
  close(fd_);
}

void NgramStore::open() {
  const StoreFile file = open_file(table_.path, mode_ == NgramMode::kDirect);
  fd_ = file.fd, direct_ = file.direct, align_ = file.align;
  if (mode_ != NgramMode::kMap) return;
  mapped_ = table_.offset + table_.rows * table_.row_bytes;
  map_ = mmap(nullptr, mapped_, PROT_READ, MAP_SHARED, fd_, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    close(fd_);
    throw std::system_error(errno, std::generic_category(), table_.path);
  }
  madvise(map_, mapped_, MADV_RANDOM);
  resident_ = static_cast<const uint8_t*>(map_) + table_.offset;
}

void NgramStore::load() {
  ram_ = std::make_unique<TierMemory>(bytes(), false);
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < std::min<uint64_t>(kLoaders, bytes() / kLoadPiece); ++i)
    threads.emplace_back([&] { load_part(next, error); });
  load_part(next, error);
  for (std::thread& thread : threads) thread.join();
  if (error.load() != 0) throw std::system_error(error.load(), std::generic_category(), table_.path);
  resident_ = ram_->data();
}

// Pieces from `next` on, until there is none or a read fails.
bool NgramStore::load_part(std::atomic<uint64_t>& next, std::atomic<int>& error) {
  for (uint64_t at; (at = next.fetch_add(kLoadPiece)) < bytes();)
    for (const uint64_t end = std::min(at + kLoadPiece, bytes()); at < end;) {
      if (error.load() != 0) return false;
      const int64_t n = pread(fd_, ram_->data() + at, end - at, static_cast<off_t>(table_.offset + at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return error.store(n < 0 ? errno : ENODATA), false;
      at += static_cast<uint64_t>(n);
    }
  return true;
}

std::string NgramStore::failure() {
  const std::lock_guard<std::mutex> hold(lock_);
  return std::exchange(failure_, {});
}

uint64_t NgramStore::box_bytes(uint64_t capacity) const {
  NgramView view;
  return ngram_view(0, capacity, table_.row_bytes, &view);
}

NgramStore::Box* NgramStore::add_box(uint64_t capacity, void* memory) {
  auto box = std::make_unique<Box>(capacity, table_.row_bytes, memory);
  const std::lock_guard<std::mutex> hold(lock_);
  boxes_.push_back(std::move(box));
  return boxes_.back().get();
}

void NgramStore::post(Box* box, const int32_t* ids, int32_t count, uint32_t* fault) {
  NgramMailbox& head = *box->view_.head;
  if (!wait_for(&head.served, box->posts_, limit_ns_, fault)) return;
  memcpy(box->view_.ids, ids, static_cast<size_t>(count) * sizeof(int32_t));
  head.count = count;
  store_release(&head.posted, ++box->posts_);
  ring();
}

const uint8_t* NgramStore::take(Box* box, uint32_t* fault) {
  if (!wait_for(&box->view_.head->served, box->posts_, limit_ns_, fault)) return nullptr;
  if (load_acquire(&box->view_.head->failed) != box->posts_) return box->view_.rows;
  raise(fault, kReadFailed);
  return nullptr;
}

void NgramStore::expect(Box* box) {
  expected_until_.store(now_ns() + limit_ns_);
  box->expected_.fetch_add(1);
  ring();
}

void NgramStore::serve() {
  std::vector<Box*> boxes;
  int turn = 0;
  for (uint32_t seen = doorbell_.load(); stop_.load() == 0; seen = doorbell_.load()) {
    {
      const std::lock_guard<std::mutex> hold(lock_);
      for (size_t i = boxes.size(); i < boxes_.size(); ++i) boxes.push_back(boxes_[i].get());
    }
    bool served = false, awaited = false;
    for (Box* box : boxes) {
      served |= serve(*box);
      awaited |= static_cast<int32_t>(box->expected_.load() - box->view_.head->served) > 0;
    }
    turn = served ? 0 : turn + 1;
    if (served) continue;
    if (awaited && now_ns() < expected_until_.load())
      relax(turn);
    else
      sleep(seen, boxes);
  }
}

// Until the doorbell rings; where a device may ask that nobody told of, a short time.
void NgramStore::sleep(uint32_t seen, const std::vector<Box*>& boxes) {
  const bool asked = std::any_of(boxes.begin(), boxes.end(), [](const Box* box) { return box->memory_ == nullptr; });
  syscall(SYS_futex, &doorbell_, FUTEX_WAIT_PRIVATE, seen, asked ? &kNap : nullptr, nullptr, 0);
}

void NgramStore::ring() {
  doorbell_.fetch_add(1);
  syscall(SYS_futex, &doorbell_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool NgramStore::serve(Box& box) {
  NgramMailbox& head = *box.view_.head;
  const uint32_t n = load_acquire(&head.posted);
  if (n == head.served) return false;
  if (!gather(box)) store_release(&head.failed, n);
  store_release(&head.served, n);
  return true;
}

// Rows in the order of ids.
bool NgramStore::gather(Box& box) {
  const NgramView& view = box.view_;
  const int32_t count = view.head->count;
  if (count < 0 || static_cast<uint64_t>(count) > box.capacity()) return false;  // a device that failed
  std::vector<Miss> misses;
  uint64_t hits = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = view.ids[i];
    if (id < 0 || static_cast<uint64_t>(id) >= table_.rows) return false;
    const uint8_t* row = resident_ != nullptr ? resident_ + static_cast<uint64_t>(id) * table_.row_bytes : cached(id);
    if (row == nullptr) {
      misses.push_back({id, i});
      continue;
    }
    memcpy(view.rows + static_cast<uint64_t>(i) * table_.row_bytes, row, table_.row_bytes);
    ++hits;
  }
  counters_->add(kNgramRows, static_cast<uint64_t>(count)), counters_->add(kNgramHits, hits);
  return misses.empty() || fetch(box, misses);
}

// One read serves all rows whose sectors touch.
bool NgramStore::fetch(Box& box, std::vector<Miss>& misses) {
  std::sort(misses.begin(), misses.end(), [](const Miss& a, const Miss& b) { return a.id < b.id; });
  std::vector<SmallRead> reads;
  std::vector<size_t> first;
  for (size_t i = 0; i < misses.size(); ++i) {
    const uint64_t begin = table_.offset + static_cast<uint64_t>(misses[i].id) * table_.row_bytes;
    const uint64_t end = begin + table_.row_bytes, to = (end + align_ - 1) / align_ * align_;
    const uint64_t from = begin / align_ * align_;
    if (!reads.empty() && from <= reads.back().offset + reads.back().bytes &&
        to - reads.back().offset <= RowReader::kMostBytes) {
      reads.back().bytes = static_cast<uint32_t>(to - reads.back().offset);
      reads.back().need = static_cast<uint32_t>(end - reads.back().offset);
    } else {
      reads.push_back({from, static_cast<uint32_t>(to - from), static_cast<uint32_t>(end - from)});
      first.push_back(i);
    }
  }
  first.push_back(misses.size());
  const int error = reader_->read(reads, [&](size_t r, const uint8_t* data) {
    for (size_t i = first[r]; i < first[r + 1]; ++i) {
      const uint64_t begin = table_.offset + static_cast<uint64_t>(misses[i].id) * table_.row_bytes;
      const uint8_t* row = data + (begin - reads[r].offset);
      memcpy(box.view_.rows + static_cast<uint64_t>(misses[i].place) * table_.row_bytes, row, table_.row_bytes);
      if (i == first[r] || misses[i].id != misses[i - 1].id) keep(misses[i].id, row);
    }
  });
  if (error == 0) return true;
  const std::lock_guard<std::mutex> hold(lock_);
  if (failure_.empty())
    failure_ = table_.path + ": rows of the n-gram table cannot be read: " +
               (error == kTruncated ? std::string("the file ends before them") : std::string(strerror(error)));
  return false;
}

const uint8_t* NgramStore::cached(int32_t id) {
  const uint64_t first = set_of(id, sets_) * kWays;
  for (uint64_t way = first; way < first + kWays; ++way)
    if (ways_[way] == id) return rows_.data() + way * table_.row_bytes;
  return nullptr;
}

void NgramStore::keep(int32_t id, const uint8_t* row) {
  const uint64_t set = set_of(id, sets_), way = set * kWays + next_way_[set];
  next_way_[set] = static_cast<uint8_t>((next_way_[set] + 1) % kWays);
  ways_[way] = id;
  memcpy(rows_.data() + way * table_.row_bytes, row, table_.row_bytes);
}

void NgramPost::run(const Op& op, int thread, int) {
  const NgramPost& self = *op.at<const NgramPost>(0);
  if (thread != 0) return;
  const int32_t count = *self.live_ * self.heads_;
  if (count < 0 || static_cast<uint64_t>(count) > self.box_->capacity()) return op.fault(kFaultRange);
  for (int32_t i = 0; i < count; ++i)
    if (self.ids_[i] < 0 || static_cast<uint64_t>(self.ids_[i]) >= self.store_->rows()) return op.fault(kFaultRange);
  uint32_t fault = op.faults->load() >> kTierFaultShift;
  self.store_->post(self.box_, self.ids_, count, &fault);
  op.fault(static_cast<strata::Fault>(fault << kTierFaultShift));
}

// Thread 0 waits for the rows, the others for it; the last to leave makes the record ready for the next step.
void NgramTake::run(const Op& op, int thread, int threads) {
  NgramTake& self = *op.at<NgramTake>(0);
  if (thread == 0) {
    uint32_t fault = op.faults->load() >> kTierFaultShift;
    const uint8_t* rows = self.store_->take(self.box_, &fault);
    op.fault(static_cast<strata::Fault>(fault << kTierFaultShift));
    self.left_.store(threads);
    self.rows_.store(rows == nullptr ? 1 : reinterpret_cast<uint64_t>(rows), std::memory_order_release);
  }
  uint64_t rows;
  for (int turn = 0; (rows = self.rows_.load(std::memory_order_acquire)) == 0; ++turn) relax(turn);
  if (rows != 1) {
    Op record = self.record_;
    record.faults = op.faults;
    record.ptr[1] = reinterpret_cast<uint64_t>(self.box_->identity()), record.ptr[2] = rows;
    record.dim[2] = static_cast<int64_t>(self.box_->capacity());
    record.run(record, thread, threads);
  }
  if (self.left_.fetch_sub(1) == 1) self.rows_.store(0);
}

}  // namespace strata::tiers
