// SentencePiece BPE: of all neighbours that together spell a piece, those of the best score merge first, the leftmost
// on a tie, until none do (Kudo and Richardson 2018, and the `bpe` model of the sentencepiece library).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace strata {

class SentencePiece {
 public:
  // texts[i] is the piece of id ids[i]; byte_ids and unknown_id are -1 where the vocabulary has none.
  SentencePiece(std::vector<std::string> texts, const std::vector<int32_t>& ids, const std::vector<float>& scores,
                const std::array<int32_t, 256>& byte_ids, int32_t unknown_id);

  // Ids of UTF-8 text whose spaces are written U+2581 already. Time grows as n log n at worst.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  struct Piece {
    int32_t id;
    float score;
  };
  struct Symbol {
    int32_t previous, next;  // -1 at the ends
    uint32_t begin, size;    // bytes of the text; size 0 once merged into its left neighbour
    int32_t id;              // -1 for a character that is no piece
  };
  void encode_part(std::string_view text, std::vector<int32_t>& out) const;
  std::vector<Symbol> split(std::string_view text) const;
  void merge(std::string_view text, std::vector<Symbol>& symbols) const;
  void append_bytes(std::string_view symbol, std::vector<int32_t>& out) const;
  const Piece* find(std::string_view text) const;

  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, Piece> pieces_;  // keys view texts_
  std::unordered_set<uint32_t> before_space_;           // characters that some piece joins to a following space
  size_t longest_ = 0;                                  // bytes of the longest piece
  std::array<int32_t, 256> byte_ids_;
  int32_t unknown_id_;
};

}  // namespace strata
