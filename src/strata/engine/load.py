"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass, replace
from pathlib import Path

from strata import hw, log
from strata.backends import Backend
from strata.config import EngineOptions, ServingOptions
from strata.engine.assemble import Around, assemble
from strata.engine.drafts import DraftReport
from strata.engine.drafts.layer import layer_options
from strata.engine.drafts.setup import make_speculation, report, say
from strata.engine.pieces import Cutter
from strata.engine.planning import check_after_load, make_plan, open_with_draft
from strata.engine.programs import Limits
from strata.engine.rates import set_costs
from strata.engine.residency import ResidencyPolicy, start_policy
from strata.engine.routes import RouteTracer
from strata.engine.runner import Runner
from strata.engine.tiering import backend_kind, make_backend, open_experts, open_tiers
from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import Placement, StatePool
from strata.memory.expert_store import ExpertStore, Progress, expert_layers
from strata.memory.plan_sizes import Choice
from strata.memory.resident import Residency
from strata.models import Model
from strata.ops import MAX_TAPS, PAGE_CELLS


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
    file, model, drafted = open_with_draft(path, draft, options.mtp if options.spec else "off")
    if backend is None and backend_kind(options) == "cuda":
        backend = make_backend(options, None, None)  # its GPU is what the plan is made for
    if backend is not None and "chunk" not in backend.forms:
        options = replace(options, prefill=0)
    placement = make_plan(file, model, options, drafted, _machine(options, backend))
    _tell(placement, backend)
    choice = placement.choice
    cutter = Cutter(min(options.prefill, -(-choice.context // PAGE_CELLS) * PAGE_CELLS))
    limits = Limits(choice.context, choice.sequences, cutter.chunk_rows)
    files = (file, drafted or file)
    experts = None if backend else open_experts(model, files, options, placement, progress)
    if backend is None:
        tiers = open_tiers(model, files, experts, options)
        backend = make_backend(options, tiers, placement)
    state = _state(model, choice, _resident(placement, options, backend))
    tracer = RouteTracer(Path(options.trace_routes), placement) if options.trace_routes else None
    runner = Runner(model, backend, state, limits, tracer, layer_options(file, model, options))
    if runner.following is not None:
        runner.following.vocabulary = runner.following.layer.prepare()
    check_after_load(placement, _machine(options, backend))
    _schedule_misses(model, options, backend)
    policy = start_policy(backend, file, placement, options.link_limit_gbps * 1e9)
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


def _state(model: Model, choice: Choice, resident: Residency | None) -> StatePool:
    """Pools for the plan's sequences. Slots after theirs receive what taps write; memory of a slot is taken when it is
    first used."""
    shape = model.state_shape()
    recurrent = bool(StatePool.create(shape, 1, 1, choice.kv).recurrent())
    slots = choice.sequences + (MAX_TAPS if recurrent else 0)
    return StatePool.create(shape, choice.pages, slots, choice.kv, resident)


def _tell(placement: Placement, backend: Backend | None) -> None:
    for note in placement.notes:
        log.logger(__name__).warning("%s", note)
    if backend is not None and backend.name == "cuda" and placement.choice.kv in ("k8v4", "q4"):
        raise UnsupportedError(f"--kv {placement.choice.kv} is not served on a GPU; f32, f16 and int8 are")


def _resident(placement: Placement, options: EngineOptions, backend: Backend) -> Residency | None:
    """Which cells lie in the pretended GPU's memory; None: all, or the backend cannot tell them apart."""
    choice = placement.choice
    if backend.name != "sim" or choice.resident >= choice.cells:
        return None
    rate = options.link_limit_gbps
    return Residency(choice.resident, 1 / rate if rate else 0.0)


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
