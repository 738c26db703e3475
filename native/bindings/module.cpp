// The extension module `strata._native`: one bind function per native part.
#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of Strata. Addresses are plain integers; callers own the memory.";
  bind_gguf(m);
  bind_hardware(m);
  bind_quants(m);
}
