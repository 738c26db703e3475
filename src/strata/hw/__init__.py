"""What the machine has and grants: cores, instruction set, memory, and how fast it can be read."""

from strata.hw.bandwidth import measure_read_bandwidth
from strata.hw.cache import cache_directory
from strata.hw.cpu import cpu_count, isa_level
from strata.hw.gpu import gpus
from strata.hw.machine import Gpu, Machine, machine
from strata.hw.memory import Memory, give_back, memory
from strata.hw.mounts import in_memory

__all__ = [
    "Gpu",
    "Machine",
    "Memory",
    "cache_directory",
    "cpu_count",
    "give_back",
    "gpus",
    "in_memory",
    "isa_level",
    "machine",
    "measure_read_bandwidth",
    "memory",
]
