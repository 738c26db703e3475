"""A pretended GPU for tests and CI: the CPU's kernels behind the tier protocol (native/include/strata/tiers.h)."""

from strata.backends.sim.backend import SimBackend, SimOptions, deal_slots

__all__ = ["SimBackend", "SimOptions", "deal_slots"]
