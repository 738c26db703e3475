// SentencePiece BPE: of all neighbours that together spell a piece, those of the best score merge first, the leftmost
// on a tie, until none do (Kudo and Richardson 2018, and the `bpe` model of the sentencepiece library).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/merge.h"
#include "text/token_map.h"

namespace strata {

class SentencePiece {
 public:
  // Text never spells the ids in `apart`. byte_ids and unknown_id are -1 where the vocabulary has none.
  SentencePiece(std::vector<std::string> tokens, std::vector<float> scores, const std::vector<int32_t>& apart,
                const std::array<int32_t, 256>& byte_ids, int32_t unknown_id);

  // Ids of UTF-8 text whose spaces are written U+2581 already. Time grows as n log n at worst.
  std::vector<int32_t> encode(std::string_view text) const;

  SentencePiece(const SentencePiece&) = delete;  // ids_ points into tokens_

 private:
  void encode_part(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;
  void append_bytes(std::string_view symbol, std::vector<int32_t>& out) const;
  int32_t find(std::string_view text) const { return text.size() > longest_ ? -1 : ids_.find(text); }

  std::vector<std::string> tokens_;
  std::vector<float> scores_;
  TokenMap ids_;
  std::unordered_set<uint32_t> before_space_;  // characters that some piece joins to a following space
  size_t longest_ = 0;                         // bytes of the longest piece
  std::array<int32_t, 256> byte_ids_;
  int32_t unknown_id_;
};

}  // namespace strata
