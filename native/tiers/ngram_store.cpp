#include "tiers/ngram_store.h"

#include <fcntl.h>
#include <sys/mman.h>
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
constexpr uint64_t kLoadPiece = 8u << 20;

uint64_t set_of(int32_t id, uint64_t sets) { return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> 32) % sets; }
}  // namespace

NgramStore::Box::Box(uint64_t capacity, uint64_t row_bytes) : identity_(capacity) {
  memory_ = std::make_unique<TierMemory>(ngram_view(0, capacity, row_bytes, &view_), false);
  ngram_view(reinterpret_cast<uint64_t>(memory_->data()), capacity, row_bytes, &view_);
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

NgramStore::~NgramStore() {
  stop_.store(1);
  doorbell_.fetch_add(1);
  doorbell_.notify_all();
  thread_.join();
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
  const uint64_t bytes = table_.rows * table_.row_bytes;
  ram_ = std::make_unique<TierMemory>(bytes, false);
  for (uint64_t at = 0; at < bytes;) {
    const int64_t n = pread(fd_, ram_->data() + at, std::min(kLoadPiece, bytes - at), static_cast<off_t>(table_.offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::system_error(n < 0 ? errno : ENODATA, std::generic_category(), table_.path);
    at += static_cast<uint64_t>(n);
  }
  resident_ = ram_->data();
}

std::string NgramStore::failure() {
  const std::lock_guard<std::mutex> hold(lock_);
  return std::exchange(failure_, {});
}

NgramStore::Box* NgramStore::add_box(uint64_t capacity) {
  auto box = std::make_unique<Box>(capacity, table_.row_bytes);
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
  doorbell_.fetch_add(1);
  doorbell_.notify_one();
}

const uint8_t* NgramStore::take(Box* box, uint32_t* fault) {
  if (!wait_for(&box->view_.head->served, box->posts_, limit_ns_, fault)) return nullptr;
  if (load_acquire(&box->view_.head->failed) != box->posts_) return box->view_.rows;
  raise(fault, kReadFailed);
  return nullptr;
}

void NgramStore::serve() {
  for (uint32_t seen = doorbell_.load(); stop_.load() == 0; seen = doorbell_.load()) {
    std::vector<Box*> boxes;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      for (const auto& box : boxes_) boxes.push_back(box.get());
    }
    bool served = false;
    for (Box* box : boxes) served |= serve(*box);
    if (!served) doorbell_.wait(seen);
  }
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
  std::vector<Miss> misses;
  uint64_t hits = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = view.ids[i];
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
