// The pretended GPU, and the pure parts of the protocol that tests and tools look at.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/tier_records.h"
#include "tiers/sim_device.h"

using namespace strata;
using namespace strata::tiers;

namespace {

uint32_t run_device(SimDevice& device, Program& program, int64_t begin, int64_t end) {
  const nb::gil_scoped_release release;
  return device.run(program, begin, end);
}

MissCosts costs(const std::vector<float>& c) {
  if (c.size() != 5) throw std::invalid_argument("costs are link, CPU, CPU a row, RAM a byte, and a post");
  return {c[0], c[1], c[2], c[3], c[4]};
}

void bind_device(nb::module_& m) {
  nb::class_<SimDevice, PolicyDevice>(m, "SimDevice")
      .def(nb::new_([](std::shared_ptr<ExpertStore> store, std::vector<uint64_t> slots, uint32_t staging, double link_rate,
                       double cpu_share, int workers, bool exclusive, uint64_t limit_ns, int32_t rows, int32_t k,
                       int32_t hidden, int32_t inner, int32_t experts) {
             const SimOptions options{std::move(slots), staging,   link_rate, cpu_share, workers, exclusive,
                                      limit_ns,         rows,      k,         hidden,    inner,   experts};
             return std::make_shared<SimDevice>(std::move(store), options);
           }),
           nb::arg("store"), nb::arg("slots"), nb::arg("staging"), nb::arg("link_rate"), nb::arg("cpu_share"),
           nb::arg("workers"), nb::arg("exclusive"), nb::arg("limit_ns"), nb::arg("rows"), nb::arg("k"), nb::arg("hidden"),
           nb::arg("inner"), nb::arg("experts"))
      .def("run", run_device, nb::arg("program"), nb::arg("begin"), nb::arg("end"))
      .def("set_costs", [](SimDevice& d, const std::vector<float>& c) { d.split().set_costs(costs(c)); }, nb::arg("costs"))
      .def("split_report", [](SimDevice& d) {
        const MissSplit::Report r = d.split().report();
        return std::make_tuple(r.split_steps, r.copy_steps, r.guarded_steps, r.split_ns_byte, r.copy_ns_byte);
      })
      .def("inject_worker", [](SimDevice& d, int fault, uint32_t after) {
        d.workers().inject(static_cast<WorkerFault>(fault), after);
      }, nb::arg("fault"), nb::arg("after"))
      .def("inject_link", [](SimDevice& d, int fault) { d.link().inject(static_cast<LinkFault>(fault)); }, nb::arg("fault"))
      .def_prop_ro("workers", [](SimDevice& d) { return d.workers().alive(); });
  nb::class_<DeviceExperts>(m, "DeviceExperts")
      .def("__init__", [](DeviceExperts* self, std::shared_ptr<ThreadPool> pool, std::shared_ptr<SimDevice> device,
                          std::shared_ptr<Guesses> guesses, int32_t layer, const RecordTuple& gate_up,
                          const RecordTuple& down) {
        new (self) DeviceExperts(std::move(pool), std::move(device), std::move(guesses), layer,
                                 expert_kernels(gate_up, down));
      }, nb::arg("pool"), nb::arg("device"), nb::arg("guesses"), nb::arg("layer"), nb::arg("gate_up"), nb::arg("down"));
}

}  // namespace

void bind_tiers_sim(nb::module_& m) {
  bind_device(m);
  m.def("split_misses", [](int32_t misses, uint64_t bytes, float rows, const std::vector<float>& c) {
    return split_misses(misses, bytes, rows, costs(c));
  }, nb::arg("misses"), nb::arg("nbytes"), nb::arg("rows"), nb::arg("costs"));
  auto program = nb::borrow<nb::class_<Program>>(m.attr("Program"));
  program.def("add_tier", [](Program& self, DeviceExperts& object) { self.add_object(DeviceExperts::run, &object); },
              nb::keep_alive<1, 2>());
}
