// The residency policy: the thread beside a device, and a replay for measuring.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "tiers/policy.h"
#include "tiers/replay.h"

using namespace strata::tiers;

namespace {

using StateTuple = std::tuple<std::vector<int32_t>, std::vector<float>, std::vector<double>, std::vector<double>>;

void bind_slots(nb::module_& m) {
  nb::class_<PolicyDevice>(m, "PolicyDevice")
      .def("promote", [](PolicyDevice& d, int32_t layer, int32_t expert, uint32_t slot) {
        return d.slot_table().promote(layer, expert, slot);
      }, nb::arg("layer"), nb::arg("expert"), nb::arg("slot"))
      .def("replace", [](PolicyDevice& d, int32_t layer, int32_t expert, uint32_t slot) {
        return d.slot_table().replace(layer, expert, slot);
      }, nb::arg("layer"), nb::arg("expert"), nb::arg("slot"))
      .def("retire", [](PolicyDevice& d, int32_t layer, int32_t expert) { return d.slot_table().retire(layer, expert); },
           nb::arg("layer"), nb::arg("expert"))
      .def("slot_of", [](PolicyDevice& d, int32_t layer, int32_t expert) { return d.slot_table().slot_of(layer, expert); },
           nb::arg("layer"), nb::arg("expert"))
      .def("slots", [](PolicyDevice& d) {
        std::vector<std::tuple<uint64_t, uint32_t, int32_t, int32_t>> slots;
        for (const Slot& s : d.slot_table().slots()) slots.emplace_back(s.bytes, s.state, s.layer, s.expert);
        return slots;
      })
      .def_prop_ro("moving", [](PolicyDevice& d) { return d.slot_table().moving(); });
}

}  // namespace

// Before the devices, which are kinds of it.
void bind_tiers_policy_device(nb::module_& m) { bind_slots(m); }

void bind_tiers_policy(nb::module_& m) {
  nb::class_<Policy>(m, "Policy")
      .def("__init__", [](Policy* self, std::shared_ptr<PolicyDevice> device, double link_rate, float gain) {
        new (self) Policy(std::move(device), {link_rate, gain});
      }, nb::arg("device"), nb::arg("link_rate"), nb::arg("gain"))
      .def("start", &Policy::start)
      .def("stop", &Policy::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("state", [](Policy& p) {
        ReuseModel::State s = p.state();
        return StateTuple(std::move(s.ages), std::move(s.counts), std::move(s.used), std::move(s.seen));
      })
      .def("restore", [](Policy& p, const StateTuple& s, size_t most) {
        return p.restore({std::get<0>(s), std::get<1>(s), std::get<2>(s), std::get<3>(s)}, most);
      }, nb::arg("state"), nb::arg("most"))
      .def_prop_ro("steps", &Policy::steps)
      .def_prop_ro("lost", &Policy::lost)
      .def_prop_ro("skipped", &Policy::skipped);
  nb::class_<PolicyReplay>(m, "PolicyReplay")
      .def("__init__", [](PolicyReplay* self, std::vector<uint64_t> bytes, const std::vector<uint64_t>& slots,
                          uint64_t quota, float gain) {
        new (self) PolicyReplay(std::move(bytes), slots, {quota ? quota : ~uint64_t{0}, gain});
      }, nb::arg("nbytes"), nb::arg("slots"), nb::arg("quota"), nb::arg("gain"))
      .def("step", [](PolicyReplay& r, const std::vector<uint32_t>& used) {
        const PolicyReplay::Step s = r.step(used);
        return std::make_tuple(s.hits, s.hit_bytes, s.moved, s.moved_bytes);
      }, nb::arg("used"));
}
