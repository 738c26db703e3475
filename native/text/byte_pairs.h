// Byte-level BPE: the pair that comes first in the file's list of merges merges first (Sennrich et al. 2016, GPT-2).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/token_map.h"

namespace strata {

class BytePairs {
 public:
  // alphabet[b] is how tokens write byte b. A merge is "left right"; merges of tokens there are not, or of ids in
  // `apart`, never apply. `whole_first`: a piece that is a token is taken without merging.
  BytePairs(std::vector<std::string> tokens, const std::vector<std::string>& merges,
            const std::vector<std::string>& alphabet, const std::vector<int32_t>& apart, bool whole_first);

  // Appends the ids of one piece, its raw bytes. A byte that has no token is dropped, and parts its neighbours.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  BytePairs(const BytePairs&) = delete;  // ids_ points into tokens_

 private:
  struct Pair {
    uint64_t key;  // left id in the high half, right id in the low; kEmpty where there is none
    int32_t rank, id;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  void add_pair(uint64_t key, int32_t rank, int32_t id);
  const Pair* find_pair(int32_t left, int32_t right) const;
  size_t slot(uint64_t key) const;

  std::vector<std::string> tokens_;
  std::vector<std::string> alphabet_;
  TokenMap ids_;
  bool whole_first_;
  std::vector<Pair> pairs_;  // open addressing, a power of two of slots, at most half full
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace strata
