// Memory tiers: counters, the expert store, and the op records that work through them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <system_error>

#include "bindings/bindings.h"
#include "bindings/tier_records.h"
#include "cpu/program.h"
#include "tiers/disk_experts.h"
#include "tiers/memory.h"
#include "tiers/store.h"

using namespace strata;
using namespace strata::tiers;

namespace {

using PlaneTuple = std::tuple<int32_t, uint64_t, uint64_t, uint64_t>;
using LayerTuple = std::tuple<std::vector<PlaneTuple>, std::vector<uint64_t>, int32_t>;

std::shared_ptr<ExpertStore> make_store(const std::vector<LayerTuple>& given, const std::vector<std::string>& paths,
                                        uint64_t budget, bool lock, int threads, unsigned depth,
                                        std::shared_ptr<Counters> counters) {
  std::vector<LayerSource> layers;
  for (const auto& [planes, tables, experts] : given) {
    if (planes.size() != kPlanes || tables.size() != kPlanes) throw std::invalid_argument("a layer has three planes");
    LayerSource layer{};
    layer.experts = experts;
    for (size_t p = 0; p < kPlanes; ++p) {
      const auto& [file, offset, stride, bytes] = planes[p];
      if (file < 0 || static_cast<size_t>(file) >= paths.size()) throw std::invalid_argument("a plane of no file");
      layer.planes[p] = {file, offset, stride, bytes};
      layer.tables[p] = reinterpret_cast<uint64_t*>(tables[p]);
    }
    layers.push_back(layer);
  }
  try {
    const nb::gil_scoped_release release;
    return std::make_shared<ExpertStore>(std::move(layers), paths, budget, lock, threads, depth, std::move(counters));
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

void bind_counters(nb::module_& m) {
  nb::class_<Counters>(m, "TierCounters")
      .def(nb::init<>())
      .def("read", [](const Counters& self) {
        std::vector<uint64_t> values;
        for (uint32_t i = 0; i < kNumCounters; ++i) values.push_back(self.get(static_cast<Counter>(i)));
        return values;
      });
}

void bind_store(nb::module_& m) {
  nb::class_<ExpertStore>(m, "ExpertStore")
      .def(nb::new_(&make_store), nb::arg("layers"), nb::arg("paths"), nb::arg("budget"), nb::arg("lock"),
           nb::arg("threads"), nb::arg("depth"), nb::arg("counters"))
      .def("fill", &ExpertStore::fill)
      .def_prop_ro("filled", &ExpertStore::filled)
      .def_prop_ro("fill_error", &ExpertStore::fill_error)
      .def("failure", &ExpertStore::failure)
      .def("holds", &ExpertStore::holds, nb::arg("layer"), nb::arg("expert"))
      .def("prefetch", [](ExpertStore& self, int32_t layer, const std::vector<int32_t>& experts) {
        self.prefetch(layer, experts.data(), experts.size());
      }, nb::arg("layer"), nb::arg("experts"))
      .def("inject", [](ExpertStore& self, int fault, uint32_t after) {
        self.queue().inject(static_cast<ReadFault>(fault), after);
      }, nb::arg("fault"), nb::arg("after"))
      .def_prop_ro("slots", &ExpertStore::slots)
      .def_prop_ro("experts", &ExpertStore::experts)
      .def_prop_ro("nbytes", [](const ExpertStore& self) { return self.memory().bytes(); })
      .def_prop_ro("address", [](const ExpertStore& self) { return reinterpret_cast<uint64_t>(self.memory().data()); })
      .def_prop_ro("locked", [](const ExpertStore& self) { return self.memory().locked(); })
      .def_prop_ro("nodes", [](const ExpertStore& self) { return self.memory().nodes(); })
      .def_prop_ro("method", [](ExpertStore& self) { return std::string(self.queue().method()); })
      .def_prop_ro("direct", [](const ExpertStore& self) {
        for (const StoreFile& file : self.files())
          if (!file.direct) return false;
        return true;
      });
  m.def("limit_tier_memory", &TierMemory::limit, nb::arg("nbytes"), nb::arg("locked"));
}

void bind_disk_experts(nb::module_& m) {
  nb::class_<Guesses>(m, "Guesses")
      .def("__init__", [](Guesses* self, size_t layers, const std::shared_ptr<Counters>& counters) {
        new (self) Guesses(layers, counters.get());
      }, nb::arg("layers"), nb::arg("counters"), nb::keep_alive<1, 3>());
  nb::class_<DiskExperts>(m, "DiskExperts")
      .def("__init__", [](DiskExperts* self, std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store,
                          std::shared_ptr<Guesses> guesses, int32_t layer, const RecordTuple& gate_up,
                          const RecordTuple& down, uint64_t limit_ns) {
        new (self) DiskExperts(std::move(pool), std::move(store), std::move(guesses), layer, expert_kernels(gate_up, down),
                               limit_ns);
      }, nb::arg("pool"), nb::arg("store"), nb::arg("guesses"), nb::arg("layer"), nb::arg("gate_up"), nb::arg("down"),
         nb::arg("limit_ns"));
  nb::class_<LookaheadStep>(m, "LookaheadStep")
      .def("__init__", [](LookaheadStep* self, std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store,
                          std::shared_ptr<Guesses> guesses, const RecordTuple& product, int32_t layer, int32_t experts,
                          int32_t k, int32_t max_rows) {
        new (self) LookaheadStep(std::move(pool), std::move(store), std::move(guesses), recorded(product), layer, experts,
                                 k, max_rows);
      }, nb::arg("pool"), nb::arg("store"), nb::arg("guesses"), nb::arg("product"), nb::arg("layer"), nb::arg("experts"),
         nb::arg("k"), nb::arg("max_rows"));
}

}  // namespace

void bind_tiers(nb::module_& m) {
  bind_counters(m);
  bind_store(m);
  bind_disk_experts(m);
  auto program = nb::borrow<nb::class_<Program>>(m.attr("Program"));
  program.def("add_tier", [](Program& self, DiskExperts& object) { self.add_object(DiskExperts::run, &object); },
              nb::keep_alive<1, 2>());
  program.def("add_tier", [](Program& self, LookaheadStep& object) { self.add_object(LookaheadStep::run, &object); },
              nb::keep_alive<1, 2>());
}
