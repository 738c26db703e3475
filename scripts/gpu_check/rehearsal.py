"""The one switch: with STRATA_CHECK_EMULATED set, stages run on the emulated device, with small models and few repeats,
so that nothing breaks for the first time where time is short."""

import os
import sys
from dataclasses import replace
from typing import TypeVar

from strata.backends.cuda import CudaBackend
from strata.backends.cuda import open_gpu as open_real_gpu
from strata.backends.cuda.driver import DeviceProperties
from strata.memory import plan
from strata.synth import DenseOptions, PlantedOptions, tiny_geometry

EMULATED = bool(os.environ.get("STRATA_CHECK_EMULATED"))
H200 = DeviceProperties("NVIDIA H200", "sm_90", 132, 143155 << 20, 227 << 10, 60 << 20, 4.8e12)
_LAYERS, _EXPERTS, _VOCAB, _HIDDEN = 4, 16, 1024, 256  # of models in a rehearsal

if EMULATED:
    sys.modules[plan.__module__].LEAST_RESIDENT = 512  # type: ignore[attr-defined]  # cells; small models select fewer

T = TypeVar("T")
Options = TypeVar("Options", PlantedOptions, DenseOptions)


def sized(real: T, rehearsed: T) -> T:
    """The value on a GPU, or the one of a rehearsal."""
    return rehearsed if EMULATED else real


def open_gpu(number: int = 0) -> CudaBackend:
    """The GPU, or what stands for it."""
    if not EMULATED:
        return open_real_gpu(number)
    from emulated_driver import EmulatedDriver  # noqa: PLC0415  (needs g++)

    driver = EmulatedDriver()
    driver.properties = H200
    return CudaBackend(driver, slab_bytes=1 << 20)


def small(options: Options) -> Options:
    """The same kind of model with few layers and experts, and narrow ones."""
    g = options.geometry
    layers = min(g.num_layers, _LAYERS)
    if isinstance(options, DenseOptions):
        geometry = replace(
            g, num_layers=min(layers, 2), hidden_size=_HIDDEN, intermediate_size=512, num_heads=4, num_kv_heads=2,
            head_dim=64, rotary_dim=64, vocab_size=_VOCAB,
        )  # fmt: skip
        return replace(options, geometry=geometry)
    kept = {name: getattr(g, name) for name in ("interval", "ngram_layer", "draft")}
    geometry = replace(
        tiny_geometry(g.arch), num_layers=layers, hidden_size=_HIDDEN, stream_rank=32, num_experts=_EXPERTS,
        num_experts_per_tok=4, moe_intermediate_size=256, shared_intermediate_size=256, vocab_size=_VOCAB,
        max_position=g.max_position, index_budget=16, **kept,
    )  # fmt: skip
    return replace(options, geometry=geometry, types={}, sparse_table=False)
