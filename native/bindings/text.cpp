// Text: the SentencePiece encoder.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "text/sentencepiece.h"

void bind_text(nb::module_& m) {
  using strata::SentencePiece;
  nb::class_<SentencePiece>(m, "SentencePiece")
      .def("__init__",
           [](SentencePiece* self, std::vector<std::string> texts, const std::vector<int32_t>& ids,
              const std::vector<float>& scores, const std::array<int32_t, 256>& byte_ids, int32_t unknown_id) {
             if (ids.size() != texts.size() || scores.size() != texts.size()) {
               throw nb::value_error("texts, ids and scores must have one length");
             }
             new (self) SentencePiece(std::move(texts), ids, scores, byte_ids, unknown_id);
           })
      .def("encode", &SentencePiece::encode, nb::call_guard<nb::gil_scoped_release>());
}
