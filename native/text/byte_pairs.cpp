#include "text/byte_pairs.h"

#include <bit>
#include <utility>

namespace strata {

BytePairs::BytePairs(std::vector<std::string> tokens, const std::vector<std::string>& merges,
                     const std::vector<std::string>& alphabet, const std::vector<int32_t>& apart, bool whole_first)
    : tokens_(std::move(tokens)), alphabet_(alphabet), ids_(tokens_), whole_first_(whole_first) {
  for (const int32_t id : apart) ids_.hide(tokens_[id]);
  for (size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = ids_.find(alphabet_[byte]);

  pairs_.assign(std::bit_ceil(2 * merges.size() + 2), Pair{kEmpty, 0, 0});
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    if (space == merge.npos || merge.find(' ', space + 1) != merge.npos) {
      throw std::invalid_argument("merges[" + std::to_string(rank) + "] must be two tokens and a space");
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const int32_t left = ids_.find(merge.substr(0, space));
    const int32_t right = ids_.find(merge.substr(space + 1));
    const int32_t id = ids_.find(joined);
    if (left >= 0 && right >= 0 && id >= 0) {
      add_pair(uint64_t(left) << 32 | uint32_t(right), static_cast<int32_t>(rank), id);
    }
  }
}

size_t BytePairs::slot(uint64_t key) const {
  key *= 0x9e3779b97f4a7c15u;  // Fibonacci hashing (Knuth, volume 3, 6.4)
  return (key ^ key >> 32) & (pairs_.size() - 1);
}

void BytePairs::add_pair(uint64_t key, int32_t rank, int32_t id) {
  size_t at = slot(key);
  while (pairs_[at].key != kEmpty && pairs_[at].key != key) at = (at + 1) & (pairs_.size() - 1);
  if (pairs_[at].key == kEmpty) pairs_[at] = {key, rank, id};  // of two equal merges the first counts
}

const BytePairs::Pair* BytePairs::find_pair(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const uint64_t key = uint64_t(left) << 32 | uint32_t(right);
  for (size_t at = slot(key); pairs_[at].key != kEmpty; at = (at + 1) & (pairs_.size() - 1)) {
    if (pairs_[at].key == key) return &pairs_[at];
  }
  return nullptr;
}

void BytePairs::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (whole_first_) {
    std::string spelled;
    for (const char c : piece) spelled += alphabet_[static_cast<unsigned char>(c)];
    if (const int32_t id = ids_.find(spelled); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  for (size_t at = 0; at < piece.size(); ++at) {
    scratch.append(static_cast<uint32_t>(at), 1, byte_ids_[static_cast<unsigned char>(piece[at])]);
  }
  merge_all(scratch, [this](const Symbol& left, const Symbol& right, Merge& merge) {
    const Pair* pair = find_pair(left.id, right.id);
    if (!pair) return false;
    merge.score = -static_cast<float>(pair->rank);  // exact: ranks stay far below 2^24
    merge.id = pair->id;
    return true;
  });
  for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[i].next) {
    if (symbols[i].id >= 0) out.push_back(symbols[i].id);
  }
}

}  // namespace strata
