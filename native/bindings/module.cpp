// The extension module `strata._native`: one bind function per native part.
#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // what lives until the interpreter exits is not a leak
  m.doc() = "Native kernels of Strata. Addresses are plain integers; callers own the memory.";
  bind_program(m);
  bind_gguf(m);
  bind_hardware(m);
  bind_quants(m);
  bind_text(m);
  bind_tiers(m);
  bind_tiers_ngram(m);
  bind_tiers_policy_device(m);
  bind_tiers_sim(m);
  bind_tiers_gpu(m);
  bind_tiers_policy(m);
}
