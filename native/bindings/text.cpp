// Text: the merges of byte-level BPE and of SentencePiece.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "text/byte_pairs.h"
#include "text/sentencepiece.h"

namespace {

using strata::BytePairs;
using strata::SentencePiece;
using Strings = std::vector<std::string>;
using Ids = std::vector<int32_t>;

void check_ids(const Ids& ids, size_t num_tokens) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= num_tokens) throw nb::index_error("id outside the vocabulary");
  }
}

void make_byte_pairs(BytePairs* self, Strings tokens, const Strings& merges, const Strings& alphabet, const Ids& apart,
                     bool whole_first) {
  check_ids(apart, tokens.size());
  if (alphabet.size() != 256) throw nb::value_error("the alphabet must have 256 characters");
  new (self) BytePairs(std::move(tokens), merges, alphabet, apart, whole_first);
}

void make_sentencepiece(SentencePiece* self, Strings tokens, std::vector<float> scores, const Ids& apart,
                        const std::array<int32_t, 256>& byte_ids, int32_t unknown_id) {
  check_ids(apart, tokens.size());
  if (scores.size() != tokens.size()) throw nb::value_error("tokens and scores must have one length");
  new (self) SentencePiece(std::move(tokens), std::move(scores), apart, byte_ids, unknown_id);
}

Ids encode_pieces(const BytePairs& self, const std::vector<std::string_view>& pieces) {
  Ids out;
  strata::Scratch scratch;
  for (const std::string_view piece : pieces) self.encode(piece, scratch, out);
  return out;
}

}  // namespace

void bind_text(nb::module_& m) {
  // The arguments keep the strings alive that are read without the GIL.
  const nb::call_guard<nb::gil_scoped_release> without_gil;
  nb::class_<BytePairs>(m, "BytePairs")
      .def("__init__", &make_byte_pairs)
      .def("encode", &encode_pieces, without_gil);
  nb::class_<SentencePiece>(m, "SentencePiece")
      .def("__init__", &make_sentencepiece)
      .def("encode", &SentencePiece::encode, without_gil);
}
