#include "tiers/uring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace strata::tiers {

namespace {
void* map_ring(int fd, uint64_t bytes, off_t offset) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
  return p == MAP_FAILED ? nullptr : p;
}

unsigned* word(void* ring, unsigned offset) { return reinterpret_cast<unsigned*>(static_cast<char*>(ring) + offset); }
}  // namespace

Uring::Uring(unsigned entries) : entries_(entries) {
  io_uring_params p;
  memset(&p, 0, sizeof p);
  fd_ = static_cast<int>(syscall(SYS_io_uring_setup, entries, &p));
  if (fd_ < 0) return;
  const unsigned sq_bytes = p.sq_off.array + p.sq_entries * 4;
  const unsigned cq_bytes = p.cq_off.cqes + p.cq_entries * static_cast<unsigned>(sizeof(io_uring_cqe));
  if (!map(sq_bytes, cq_bytes, p.sq_entries)) {
    close(fd_);
    fd_ = -1;
    return;
  }
  entries_ = p.sq_entries;
  sq_tail_ = word(sq_, p.sq_off.tail), sq_array_ = word(sq_, p.sq_off.array), sq_mask_ = *word(sq_, p.sq_off.ring_mask);
  cq_head_ = word(cq_, p.cq_off.head), cq_tail_ = word(cq_, p.cq_off.tail), cq_mask_ = *word(cq_, p.cq_off.ring_mask);
  cqes_ = reinterpret_cast<io_uring_cqe*>(word(cq_, p.cq_off.cqes));
}

bool Uring::map(unsigned sq_bytes, unsigned cq_bytes, unsigned entries) {
  sq_bytes_ = sq_bytes, cq_bytes_ = cq_bytes, sqe_bytes_ = entries * sizeof(io_uring_sqe);
  sq_ = map_ring(fd_, sq_bytes_, IORING_OFF_SQ_RING);
  cq_ = map_ring(fd_, cq_bytes_, IORING_OFF_CQ_RING);
  sqes_ = static_cast<io_uring_sqe*>(map_ring(fd_, sqe_bytes_, IORING_OFF_SQES));
  return sq_ != nullptr && cq_ != nullptr && sqes_ != nullptr;
}

Uring::~Uring() {
  if (sqes_ != nullptr) munmap(sqes_, sqe_bytes_);
  if (cq_ != nullptr) munmap(cq_, cq_bytes_);
  if (sq_ != nullptr) munmap(sq_, sq_bytes_);
  if (fd_ >= 0) close(fd_);
}

// As many as the submission ring holds may be inside: the completion ring is twice as large and cannot overflow.
unsigned Uring::free() const { return entries_ - inside_; }

void Uring::read(int fd, uint64_t offset, void* to, unsigned bytes, uint64_t tag) {
  const unsigned tail = *sq_tail_ + queued_, at = tail & sq_mask_;
  io_uring_sqe& sqe = sqes_[at];
  memset(&sqe, 0, sizeof sqe);
  sqe.opcode = IORING_OP_READ;
  sqe.fd = fd;
  sqe.off = offset;
  sqe.addr = reinterpret_cast<uint64_t>(to);
  sqe.len = bytes;
  sqe.user_data = tag;
  sq_array_[at] = at;
  ++queued_, ++inside_;
}

bool Uring::enter(unsigned wait) {
  __atomic_store_n(sq_tail_, *sq_tail_ + queued_, __ATOMIC_RELEASE);
  unsigned left = queued_;
  queued_ = 0;
  for (;;) {
    const unsigned flags = wait > 0 ? IORING_ENTER_GETEVENTS : 0;
    const long done = syscall(SYS_io_uring_enter, fd_, left, wait, flags, nullptr, 0);
    if (done >= 0) {
      left -= static_cast<unsigned>(done);
      if (left == 0) return true;
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      return false;
    }
  }
}

bool Uring::pop(uint64_t* tag, int* result) {
  const unsigned head = *cq_head_;
  if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
  *tag = cqes_[head & cq_mask_].user_data, *result = cqes_[head & cq_mask_].res;
  __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
  --inside_;
  return true;
}

}  // namespace strata::tiers
