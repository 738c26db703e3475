// The host's side of experts on a GPU; memory and launches are Python's (backends/cuda/tier.py).
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/tier_records.h"
#include "tiers/blob.h"
#include "tiers/gpu_device.h"

using namespace strata;
using namespace strata::tiers;

namespace {

template <class T> T* pointer(uint64_t address) { return reinterpret_cast<T*>(address); }

// Addresses in device memory: entries, staged, tables, sources, offsets, classes, late, zeros, ring, state.
nb::bytes image(GpuDevice& d, const std::vector<uint64_t>& at, uint64_t place_bytes, uint32_t places) {
  if (at.size() != 10) throw std::invalid_argument("an image takes ten addresses");
  const GpuMapped& m = d.parts();
  ExpertTier t{};
  t.entries = pointer<uint32_t>(at[0]), t.staged = pointer<uint64_t>(at[1]), t.tables = pointer<uint64_t>(at[2]);
  t.sources = pointer<uint64_t>(at[3]), t.offsets = pointer<uint64_t>(at[4]), t.classes = pointer<uint32_t>(at[5]);
  t.late = pointer<uint32_t>(at[6]), t.zeros = at[7], t.ring = at[8], t.state = pointer<TierState>(at[9]);
  t.place_bytes = place_bytes, t.places = places;
  t.layers = d.slot_table().num_layers(), t.experts = d.slot_table().num_experts();
  t.changes = m.changes, t.settings = m.settings, t.routes = m.routes, t.counts = m.counts, t.box = m.box;
  return nb::bytes(reinterpret_cast<const char*>(&t), sizeof t);
}

MissCosts costs(const std::vector<float>& c) {
  if (c.size() != 5) throw std::invalid_argument("costs are link, CPU, CPU a row, RAM a byte, and a post");
  return {c[0], c[1], c[2], c[3], c[4]};
}

std::vector<std::vector<uint64_t>> plane_offsets(const ExpertStore& store) {
  std::vector<std::vector<uint64_t>> offsets;
  for (const LayerSource& layer : store.layers()) {
    const Blob blob(layer);
    offsets.push_back({blob.offset[0], blob.offset[1], blob.offset[2], blob.bytes});
  }
  return offsets;
}

std::shared_ptr<GpuDevice> make_device(std::shared_ptr<ExpertStore> store, const std::vector<std::tuple<uint64_t, uint64_t>>& slots,
                                       int32_t rows, int32_t k, int32_t hidden, int32_t inner, int32_t experts, int workers,
                                       uint64_t limit_ns, uint64_t mapped, uint64_t faults, bool apart) {
  GpuOptions o;
  for (const auto& [address, bytes] : slots) o.slots.push_back({address, bytes, kFree, 0, -1, -1});
  o.limits = {rows, k, hidden, experts};
  o.inner = inner, o.workers = workers, o.limit_ns = limit_ns, o.faults = pointer<uint32_t>(faults);
  o.apart = apart;
  return std::make_shared<GpuDevice>(std::move(store), o, mapped);
}

}  // namespace

void bind_tiers_gpu(nb::module_& m) {
  nb::class_<GpuDevice, PolicyDevice>(m, "GpuDevice")
      .def(nb::new_(&make_device), nb::arg("store"), nb::arg("slots"), nb::arg("rows"), nb::arg("k"), nb::arg("hidden"),
           nb::arg("inner"), nb::arg("experts"), nb::arg("workers"), nb::arg("limit_ns"), nb::arg("mapped"), nb::arg("faults"),
           nb::arg("apart") = false)
      .def("image", image, nb::arg("addresses"), nb::arg("place_bytes"), nb::arg("places"))
      .def("set_layer", [](GpuDevice& d, int32_t layer, const RecordTuple& gate_up, const RecordTuple& down) {
        d.workers().set_layer(layer, expert_kernels(gate_up, down));
      }, nb::arg("layer"), nb::arg("gate_up"), nb::arg("down"))
      .def("set_costs", [](GpuDevice& d, const std::vector<float>& c) { d.workers().set_costs(costs(c)); }, nb::arg("costs"))
      .def("set_share", [](GpuDevice& d, float share) { d.settings().share = share; }, nb::arg("share"))
      .def("set_link", [](GpuDevice& d, float ns_byte) { d.settings().link_ns_byte = ns_byte; }, nb::arg("ns_byte"))
      .def("set_ahead", [](GpuDevice& d, uint32_t most) { d.settings().ahead = most; }, nb::arg("most"))
      .def("set_limit", [](GpuDevice& d, uint64_t ns) { d.settings().limit_ns = ns; }, nb::arg("ns"))
      .def("lend", [](GpuDevice& d, const std::vector<uint32_t>& slots) { return d.slot_table().lend(slots); }, nb::arg("slots"))
      .def("give_back", [](GpuDevice& d) { d.slot_table().give_back(); })
      .def("reading", [](GpuDevice& d, int32_t first, int32_t count) { d.slot_table().reading(first, count); }, nb::arg("first"),
           nb::arg("count"))
      .def("count", [](GpuDevice& d) { d.counters(); })
      .def_prop_ro("missed", [](GpuDevice& d) {
        const Counters& c = d.counters();
        return c.get(kCopies) + c.get(kCpuExperts) + c.get(kPrefetchUsed);
      })
      .def("close", &GpuDevice::close, nb::call_guard<nb::gil_scoped_release>())
      .def("started", &GpuDevice::started)
      .def("finished", &GpuDevice::finished, nb::arg("number"))
      .def("inject_worker", [](GpuDevice& d, int fault, uint32_t after) {
        d.workers().inject(static_cast<WorkerFault>(fault), after);
      }, nb::arg("fault"), nb::arg("after"))
      .def_prop_ro("workers", [](GpuDevice& d) { return d.workers().alive(); })
      .def_prop_ro("computed_apart", [](GpuDevice& d) { return std::make_tuple(d.apart().get(kCpuExperts), d.apart().get(kCpuBytes)); });
  m.def("gpu_tier_sizes", [](int32_t rows, int32_t k, int32_t hidden, int32_t experts) {
    GpuMapped parts{};
    return std::make_tuple(GpuDevice::mapped_bytes(0, {rows, k, hidden, experts}, &parts), sizeof(TierState), sizeof(ExpertTier));
  }, nb::arg("rows"), nb::arg("k"), nb::arg("hidden"), nb::arg("experts"));
  m.def("try_out", [](uint32_t which, const std::vector<uint64_t>& with, const std::vector<uint64_t>& without) {
    Trial trial{};
    std::vector<bool> held;
    uint64_t took = 0;
    for (size_t i = 0; i < with.size(); ++i) {
      held.push_back(trial_step(trial, which, static_cast<uint32_t>(i), took));
      took = held.back() ? without[i] : with[i];
    }
    return held;
  }, nb::arg("which"), nb::arg("with_ns"), nb::arg("without_ns"));
  m.def("expert_plane_offsets", plane_offsets, nb::arg("store"));
}
