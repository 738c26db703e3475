// The store of n-gram rows and the records that ask it.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <system_error>

#include "bindings/bindings.h"
#include "bindings/tier_records.h"
#include "cpu/program.h"
#include "tiers/ngram_store.h"

using namespace strata;
using namespace strata::tiers;

namespace {

std::shared_ptr<NgramStore> make_store(const std::string& path, uint64_t offset, uint64_t rows, uint64_t row_bytes, int mode,
                                       uint64_t cache_rows, int threads, uint64_t limit_ns,
                                       std::shared_ptr<Counters> counters) {
  try {
    const nb::gil_scoped_release release;
    return std::make_shared<NgramStore>(NgramTable{path, offset, rows, row_bytes}, static_cast<NgramMode>(mode),
                                        cache_rows, threads, limit_ns, std::move(counters));
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

// Rows of `ids` to `out`; false after a fault.
bool gather(NgramStore& store, NgramStore::Box* box, const std::vector<int32_t>& ids, uint64_t out) {
  if (ids.size() > box->capacity()) throw std::invalid_argument("more ids than the box holds");
  const nb::gil_scoped_release release;
  uint32_t fault = 0;
  store.post(box, ids.data(), static_cast<int32_t>(ids.size()), &fault);
  const uint8_t* rows = store.take(box, &fault);
  if (rows == nullptr) return false;
  memcpy(reinterpret_cast<void*>(out), rows, ids.size() * store.row_bytes());
  return true;
}

}  // namespace

void bind_tiers_ngram(nb::module_& m) {
  nb::class_<NgramStore::Box>(m, "NgramBox").def_prop_ro("addresses", [](const NgramStore::Box& self) {
    const NgramView& view = self.view();
    return std::tuple(reinterpret_cast<uint64_t>(view.head), reinterpret_cast<uint64_t>(view.ids), reinterpret_cast<uint64_t>(view.rows));
  });
  nb::class_<NgramStore>(m, "NgramStore")
      .def(nb::new_(&make_store), nb::arg("path"), nb::arg("offset"), nb::arg("rows"), nb::arg("row_bytes"),
           nb::arg("mode"), nb::arg("cache_rows"), nb::arg("threads"), nb::arg("limit_ns"),
           nb::arg("counters"))
      .def("add_box", [](NgramStore& self, uint64_t capacity, uint64_t memory) {
        return self.add_box(capacity, reinterpret_cast<void*>(memory));
      }, nb::arg("capacity"), nb::arg("memory") = 0, nb::rv_policy::reference_internal)
      .def("box_bytes", &NgramStore::box_bytes, nb::arg("capacity"))
      .def("expect", &NgramStore::expect, nb::arg("box"))
      .def("gather", gather, nb::arg("box"), nb::arg("ids"), nb::arg("out"))
      .def("end", &NgramStore::end, nb::call_guard<nb::gil_scoped_release>())
      .def("failure", &NgramStore::failure)
      .def("inject", [](NgramStore& self, int fault, uint32_t after) {
        self.inject(static_cast<ReadFault>(fault), after);
      }, nb::arg("fault"), nb::arg("after"))
      .def_prop_ro("method", [](const NgramStore& self) { return std::string(self.method()); })
      .def_prop_ro("direct", &NgramStore::direct)
      .def_prop_ro("limit_ns", &NgramStore::limit_ns)
      .def_prop_ro("address", [](const NgramStore& self) { return reinterpret_cast<uint64_t>(self.in_ram()); })
      .def_prop_ro("nbytes", &NgramStore::bytes);
  nb::class_<NgramPost>(m, "NgramPost")
      .def("__init__", [](NgramPost* self, std::shared_ptr<NgramStore> store, NgramStore::Box* box,
                          uint64_t live, uint64_t ids, int32_t heads) {
        new (self) NgramPost(std::move(store), box, reinterpret_cast<const int32_t*>(live),
                             reinterpret_cast<const int32_t*>(ids), heads);
      }, nb::arg("store"), nb::arg("box"), nb::arg("live"), nb::arg("ids"), nb::arg("heads"));
  nb::class_<NgramTake>(m, "NgramTake")
      .def("__init__", [](NgramTake* self, std::shared_ptr<NgramStore> store, NgramStore::Box* box,
                          const RecordTuple& record) {
        new (self) NgramTake(std::move(store), box, recorded(record).op);
      }, nb::arg("store"), nb::arg("box"), nb::arg("record"));
  auto program = nb::borrow<nb::class_<Program>>(m.attr("Program"));
  program.def("add_tier", [](Program& self, NgramPost& object) { self.add_object(NgramPost::run, &object); },
              nb::keep_alive<1, 2>());
  program.def("add_tier", [](Program& self, NgramTake& object) { self.add_object(NgramTake::run, &object); },
              nb::keep_alive<1, 2>());
}
