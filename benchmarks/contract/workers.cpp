// CPU workers of the layer experiment: threads that poll the layers' mailboxes in mapped memory, compute each listed
// expert in place with the contract's AVX-512 kernels, and answer with one row per (row, expert).
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "mailbox.h"
#include "packed_avx512.h"

using namespace strata;

namespace {

struct Pool {
  Mailbox* boxes;
  std::vector<int> layers;           // those that will post, in order
  std::vector<const uint8_t*> expert;  // [layer][kExperts], packed gate, up, down
  int threads;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> arrived{0};
  alignas(64) int8_t hq[kExpertWidth];
  alignas(64) float hd[kExpertWidth / 32];
  alignas(64) int16_t hsums[kExpertWidth / 16];
  std::vector<std::thread> pool;
  const simd::Rows<QuantType::IQ3_XXS> iq3{};
  const simd::Rows<QuantType::Q2_0> q2{};

  // All threads have come `phase` times.
  void barrier(uint64_t phase) {
    arrived.fetch_add(1, std::memory_order_acq_rel);
    while (arrived.load(std::memory_order_acquire) < phase * static_cast<uint64_t>(threads)) _mm_pause();
  }

  // 32 values of silu(gate) * up, quantised.
  void gate_up(const uint8_t* w, int unit, const simd::Activation& x) {
    float g[32], u[32], inverse, amax = 0.0f;
    for (int i = 0; i < 32; i += 16) {
      simd::rows16<QuantType::IQ3_XXS>(iq3, w, kExpertWidth, kHidden / 32, 32 * unit + i, x, g + i);
      simd::rows16<QuantType::IQ3_XXS>(iq3, w + kGateBytes, kExpertWidth, kHidden / 32, 32 * unit + i, x, u + i);
    }
    for (int i = 0; i < 32; ++i) {
      g[i] = silu32(g[i]) * u[i];
      amax = std::fabs(g[i]) > amax ? std::fabs(g[i]) : amax;
    }
    inverse = block_inverse(amax);
    hd[unit] = block_scale(amax);
    for (int h = 0; h < 2; ++h) {
      int sum = 0;
      for (int i = 16 * h; i < 16 * h + 16; ++i) sum += hq[32 * unit + i] = block_code(g[i], inverse);
      hsums[2 * unit + h] = static_cast<int16_t>(sum);
    }
  }

  void work(int t) {
    auto x = std::make_unique<simd::Activation>(), h = std::make_unique<simd::Activation>();
    constexpr int units = kExpertWidth / 32, tiles = kHidden / 16;
    uint64_t phase = 0;
    for (uint32_t step = 1;; ++step)
      for (const int layer : layers) {
        Mailbox& box = boxes[layer];
        const std::atomic_ref<uint32_t> posted(box.posted);
        while (posted.load(std::memory_order_acquire) != step) {
          if (stop.load(std::memory_order_relaxed)) return;
          _mm_pause();
        }
        simd::prepare<QuantType::IQ3_XXS>(box.q, box.d, box.sums, kHidden / 32, *x);
        for (int j = 0; j < box.count; ++j) {
          const int rank = box.rank[j];
          const uint8_t* w = expert[static_cast<size_t>(layer) * kExperts + box.expert[j]];
          for (int u = units * t / threads; u < units * (t + 1) / threads; ++u) gate_up(w, u, *x);
          barrier(++phase);
          simd::prepare<QuantType::Q2_0>(hq, hd, hsums, kExpertWidth / 32, *h);
          for (int i = tiles * t / threads; i < tiles * (t + 1) / threads; ++i)
            simd::rows16<QuantType::Q2_0>(q2, w + 2 * kGateBytes, kHidden, kExpertWidth / 32, 16 * i, *h, box.rows[rank] + 16 * i);
          barrier(++phase);
          if (t == 0) std::atomic_ref<uint32_t>(box.done[rank]).store(step, std::memory_order_release);
        }
      }
  }
};

}  // namespace

extern "C" {

int workers_mailbox_bytes() { return static_cast<int>(sizeof(Mailbox)); }

void* workers_start(void* boxes, const int* layers, int count, const uint64_t* expert, int all_layers, int threads) {
  auto* pool = new Pool{};
  pool->boxes = static_cast<Mailbox*>(boxes);
  pool->layers.assign(layers, layers + count);
  for (int i = 0; i < all_layers * kExperts; ++i) pool->expert.push_back(reinterpret_cast<const uint8_t*>(expert[i]));
  pool->threads = threads;
  for (int t = 0; t < threads; ++t) pool->pool.emplace_back([pool, t] { pool->work(t); });
  return pool;
}

void workers_stop(void* p) {
  auto* pool = static_cast<Pool*>(p);
  pool->stop.store(true);
  for (auto& thread : pool->pool) thread.join();
  delete pool;
}

}  // extern "C"
