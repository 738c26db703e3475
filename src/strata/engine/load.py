"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass, replace
from pathlib import Path

from strata import _native, hw, log
from strata.backends import Backend
from strata.config import EngineOptions, Option, ServingOptions
from strata.engine.assemble import Around, assemble
from strata.engine.drafts import DraftReport
from strata.engine.drafts.layer import layer_options
from strata.engine.drafts.setup import make_speculation, report, say
from strata.engine.gpu_experts import expect_weights, hold_experts, set_gpu_costs
from strata.engine.offload import split
from strata.engine.pieces import Cutter
from strata.engine.planning import check_after_load, gpu_measure, make_plan, open_with_draft
from strata.engine.programs import NARROW_CHUNKS, Limits
from strata.engine.rates import set_costs
from strata.engine.residency import ResidencyPolicy, start_policy
from strata.engine.routes import RouteTracer
from strata.engine.runner import Runner
from strata.engine.shares import cpu_share
from strata.engine.tiering import AsksForRows, backend_kind, make_backend, open_experts, open_tiers
from strata.gguf import ModelFile
from strata.memory import Placement, StatePool
from strata.memory.counters import read_counters
from strata.memory.expert_store import ExpertStore, Progress, expert_layers
from strata.memory.plan_sizes import Choice
from strata.memory.resident import Residency
from strata.models import Model
from strata.ops import MAX_TAPS, PAGE_CELLS

_FOR_A_GPU = (
    "vram_limit_gib",
    "expert_cache",
    "kv_resident",
    "kv_prefetch",
    "cpu_share",
    "pcie_share",
    "link_limit_gbps",
)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to step."""

    file: ModelFile
    model: Model
    runner: Runner
    cutter: Cutter
    around: Around
    placement: Placement
    weight_bytes_per_token: int
    kv_bytes_per_cell: int
    drafts: DraftReport
    experts: ExpertStore | None = None  # None: they lie in the file's map
    policy: ResidencyPolicy | None = None  # None: experts do not move

    def stop_policy(self) -> None:
        """Experts move no more; what was learned is kept."""
        if self.policy is not None:
            self.policy.close()

    def tier_counts(self) -> dict[str, int]:
        """What the tiers of experts have counted (memory/counters.py); empty where all lie in one."""
        if self.experts is None:
            return {}
        device = getattr(self.runner.backend, "device", None)
        if isinstance(device, _native.GpuDevice):
            device.count()
        prompts: dict[str, int] = getattr(self.runner.backend, "prompt_counts", {})
        return read_counters(self.experts.counters) | prompts


def load_model(
    path: Path,
    options: EngineOptions,
    draft: Path | None = None,
    backend: Backend | None = None,
    serving: ServingOptions | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Opens, checks, plans and lowers; `draft`: the file of the draft layer, the model's own or another; `backend`: in
    the place of the one that the options name; `progress` is told of experts that are read."""
    cpu_share(options)  # what contradicts is refused whatever computes
    file, model, drafted = open_with_draft(path, draft, options.mtp if options.spec else "off")
    if backend is None and backend_kind(options) == "cuda":
        backend = make_backend(options, None, None)  # its GPU is what the plan is made for
    if backend is not None and "chunk" not in backend.forms:
        options = replace(options, prefill="0")
    measure = gpu_measure(backend) if backend is not None and backend.name == "cuda" else None
    placement = make_plan(file, model, options, drafted, _machine(options, backend), measure)
    _tell(placement, options)
    choice = placement.choice
    cutter = Cutter(min(choice.prefill, -(-choice.context // PAGE_CELLS) * PAGE_CELLS))
    limits = Limits(
        choice.context,
        choice.sequences,
        cutter.chunk_rows,
        narrow_chunks=NARROW_CHUNKS if backend is not None and backend.name == "cuda" else (),
    )
    files = (file, drafted or file)
    experts = hold_experts(backend, model, files, options, placement, progress)
    if backend is None:
        experts = open_experts(model, files, options, placement, progress)
        tiers = open_tiers(model, files, experts, options, backend_kind(options))
        backend = make_backend(options, tiers, placement)
    elif isinstance(backend, AsksForRows):
        tiers = open_tiers(model, files, experts, options, "cuda")
        backend.ask_for_rows({} if tiers is None else tiers.ngram)
    expect_weights(backend, placement)
    backend = split(backend, placement.offloaded, options)
    state = _state(model, choice, _resident(placement, options, backend))
    tracer = RouteTracer(Path(options.trace_routes), placement) if options.trace_routes else None
    runner = Runner(model, backend, state, limits, tracer, layer_options(file, model, options))
    if runner.following is not None:
        runner.following.vocabulary = runner.following.layer.prepare()
    check_after_load(placement, _machine(options, backend))
    policy = start_policy(backend, file, placement, options.link_limit_gbps * 1e9)
    _schedule_misses(model, options, backend)
    speculation = make_speculation(file, runner, options)
    drafts = report(speculation, runner, options)
    say(drafts)
    around = assemble(file, runner, cutter, serving or ServingOptions(), speculation)
    weights, cell = runner.weight_bytes_per_token, state.cell_bytes
    return LoadedModel(file, model, runner, cutter, around, placement, weights, cell, drafts, experts, policy)


def _schedule_misses(model: Model, options: EngineOptions, backend: Backend) -> None:
    """Gives a device that shares misses with the CPU this machine's rates."""
    if backend.name == "sim" and options.cpu_share == "auto":
        threads, link = options.threads or hw.cpu_count(), options.link_limit_gbps * 1e9
        set_costs(backend, expert_layers(model), threads, options.isa, link)
    else:
        set_gpu_costs(backend, model, options)


def _state(model: Model, choice: Choice, resident: Residency | None) -> StatePool:
    """Pools for the plan's sequences. Slots after theirs receive what taps write; memory of a slot is taken when it is
    first used."""
    shape = model.state_shape()
    recurrent = bool(StatePool.create(shape, 1, 1, choice.kv).recurrent())
    slots = choice.sequences + (MAX_TAPS if recurrent else 0)
    return StatePool.create(shape, choice.pages, slots, choice.kv, resident)


def _tell(placement: Placement, options: EngineOptions) -> None:
    say = log.logger(__name__).warning
    for note in placement.notes:
        say("%s", note)
    if options.threads > (granted := hw.cpu_count()):
        say(
            "--threads is %d and the machine grants %d: threads that wait for each other make it slow",
            options.threads,
            granted,
        )
    if placement.vram is None and (idle := [o.flag for o in options.options() if _idle(o, options)]):
        say("%s: of no effect without a GPU", ", ".join(idle))


def _idle(option: Option, options: EngineOptions) -> bool:
    """Whether a setting that only a GPU has a use for was set."""
    return option.name in _FOR_A_GPU and getattr(options, option.name) != option.default


def _resident(placement: Placement, options: EngineOptions, backend: Backend) -> Residency | None:
    """Which cells lie in the GPU's memory; None: all, or the backend cannot tell them apart."""
    choice, rate = placement.choice, options.link_limit_gbps
    cells = options.kv_resident or choice.resident
    if backend.name not in ("sim", "cuda") or cells >= choice.cells:
        return None
    return Residency(cells, 1 / rate if rate else 0.0, placement.model.stage(choice) > 0)


def _machine(options: EngineOptions, backend: Backend | None) -> hw.Machine:
    """The machine as this backend uses it: with its GPU, or without one."""
    found = hw.machine(options.threads)
    gpu: hw.Gpu | None = getattr(backend, "gpu", None)
    if backend_kind(options) == "sim":
        gpu = hw.Gpu("sim", found.ram, found.ram)
    if gpu is None:
        return found.taken_as(options.ram_limit_gib, 0, 0)
    found = replace(found, gpus=(gpu,))
    return found.taken_as(options.ram_limit_gib, options.vram_limit_gib, options.link_limit_gbps)
