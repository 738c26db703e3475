"""From options to tiers: which weights leave the file's map, and the backend that works with them."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from strata import _native, hw
from strata.backends import Backend, ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.backends.cpu.tiers import Tiers
from strata.backends.sim import SimBackend, SimOptions
from strata.config import EngineOptions
from strata.engine.shares import cpu_share
from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import Placement
from strata.memory.expert_store import ExpertStore, Progress, StoreOptions, expert_layers
from strata.memory.file_places import Copies
from strata.memory.ngram_store import NgramMode, NgramOptions, ngram_tables, open_table
from strata.memory.plan_sizes import ROW_CACHE
from strata.models import Model
from strata.ops import Weight

Kind = Literal["cpu", "sim", "cuda", "reference", "contract"]
_GIB = 2**30


@runtime_checkable
class AsksForRows(Protocol):
    """A backend whose steps ask for rows of n-gram tables."""

    def ask_for_rows(self, stores: Mapping[Weight, _native.NgramStore]) -> None:
        """Rows of these tables come from their stores."""


def backend_kind(options: EngineOptions) -> Kind:
    """The backend that the options and the machine choose."""
    if options.backend != "auto":
        return options.backend  # type: ignore[return-value]  # config checks it
    return "cpu" if _gpu(options) is None else "cuda"


def open_experts(
    model: Model,
    files: Sequence[ModelFile],
    options: EngineOptions,
    placement: Placement,
    progress: Progress | None,
) -> ExpertStore | None:
    """The experts' store, loaded with as many as the plan gives RAM; None where all stay in the file's map."""
    layers, kind = expert_layers(model), backend_kind(options)
    if kind == "sim" and not layers:
        raise UnsupportedError("--backend sim is for models with routed experts")
    few = options.ram_budget_gib or placement.experts_on_ssd
    if not layers or not (kind == "sim" or (kind == "cpu" and few)):
        return None
    budget = placement.experts_in_ram if placement.experts_on_ssd else int(options.ram_budget_gib * _GIB)
    lookahead = options.lookahead == "on"
    store = ExpertStore(layers, files, StoreOptions(budget=budget, lock=kind == "sim", lookahead=lookahead))
    store.load(progress)
    return store


def open_tiers(
    model: Model, files: Sequence[ModelFile], experts: ExpertStore | None, options: EngineOptions, kind: Kind
) -> Tiers | None:
    """What leaves the map for a backend of that kind; None: nothing does."""
    tables = tuple(ngram_tables(model))
    mode = _table_mode(options, kind, experts, sum(table.nbytes for table in tables))
    if experts is None and mode is None:
        return None
    counters = experts.counters if experts is not None else _native.TierCounters()
    stores = {
        table: open_table(table, files, NgramOptions(mode), counters) for table in tables if mode is not None
    }
    return Tiers(
        None if experts is None else experts.tiers, stores, None if experts is None else Copies(files)
    )


def make_backend(options: EngineOptions, tiers: Tiers | None, placement: Placement | None) -> Backend:
    """The backend that the options name, `sim` with the plan's expert slots."""
    kind, threads = backend_kind(options), options.threads or hw.cpu_count()
    if kind in ("reference", "contract"):
        return ReferenceBackend("float" if kind == "reference" else "contract")
    if kind == "cuda":
        from strata.backends.cuda import open_gpu  # the bindings are optional

        return open_gpu(_gpu(options) or 0)
    if kind == "sim":
        assert placement is not None
        return _sim(options, tiers, tuple(placement.slots.sizes()), threads)
    return CpuBackend(threads, options.isa, tiers=tiers)


def _gpu(options: EngineOptions) -> int | None:
    """The GPU that the options choose; None for the CPU."""
    if options.device == "cpu":
        return None
    if options.device == "auto":
        from strata.backends.cuda import gpu_count

        return 0 if gpu_count() else None
    number = options.device.removeprefix("cuda").removeprefix(":")
    return int(number or 0)


def _sim(options: EngineOptions, tiers: Tiers | None, slots: tuple[int, ...], threads: int) -> Backend:
    assert tiers is not None and tiers.experts is not None
    device = max(1, threads // 2)
    sim = SimOptions(
        slots=slots,
        link_rate=options.link_limit_gbps * 1e9,
        cpu_share=cpu_share(options),
        workers=max(1, threads - device),
        exclusive=options.exclusive == "on",
    )
    return SimBackend(device, options.isa, tiers, sim)


def _table_mode(
    options: EngineOptions, kind: Kind, experts: ExpertStore | None, table_bytes: int
) -> NgramMode | None:
    """None: kernels read the table through the file's map."""
    mode = options.ngram_table
    if kind not in ("cpu", "sim", "cuda"):
        return None
    if mode != "auto":
        return mode  # type: ignore[return-value]  # config checks it
    if kind == "cuda":
        return "ram" if table_bytes <= ROW_CACHE else "direct"
    return None if experts is None else "direct"
