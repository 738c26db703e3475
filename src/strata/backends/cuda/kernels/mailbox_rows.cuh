// Activation rows on their way to CPU workers (strata/tiers.h, the mailbox).
#pragma once

#include "device.cuh"
#include "strata/tiers_gpu.h"

namespace strata {

// Of a step or a chunk; planes that are not there are null.
struct Rows {
  const int8_t* q;
  const float* d;
  const int16_t* sums;
  const float* x;
  int hidden;
};

// `Threads`: of the thread block, all of which come here.
template <int Threads, class T> __device__ __forceinline__ void copy_row(T* to, const T* from, int count) {
  if (from == nullptr) return;
  const int words = count * static_cast<int>(sizeof(T)) / 4;
  for (int i = threadIdx.x; i < words; i += Threads) reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
}

// Row r to its place in the mailbox.
template <int Threads> __device__ __forceinline__ void send_row(const tiers::MailboxView& box, const Rows& in, int r) {
  const size_t at = static_cast<size_t>(r) * in.hidden;
  if (in.q != nullptr) {
    copy_row<Threads>(box.codes + at, in.q + at, in.hidden);
    copy_row<Threads>(box.scales + at / 32, in.d + at / 32, in.hidden / 32);
    copy_row<Threads>(box.sums + at / 16, in.sums + at / 16, in.hidden / 16);
  }
  if (in.x != nullptr) copy_row<Threads>(box.x + at, in.x + at, in.hidden);
}

// Hands the workers the list that the mailbox has, when all of it is written. One thread.
__device__ __forceinline__ void post_list(const tiers::ExpertTier& t, int layer, int rows, int items) {
  tiers::Mailbox* head = t.box.head;
  head->layer = layer, head->rows = rows, head->items = items;
  __threadfence_system();
  const uint32_t n = t.state->posts + 1;
  t.state->posts = n;
  tiers::store_release(&head->posted, n);
}

}  // namespace strata
