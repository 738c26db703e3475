"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass
from pathlib import Path

from strata import hw, log, models
from strata.backends import Backend, ReferenceBackend
from strata.config import EngineOptions, ServingOptions
from strata.engine.assemble import Around, assemble
from strata.engine.pieces import Cutter
from strata.engine.programs import Limits
from strata.engine.runner import Runner
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile, open_model
from strata.memory import KVType, StatePool
from strata.models import Model
from strata.ops import MAX_STEP_ROWS, MAX_TAPS, PAGE_CELLS

_USABLE = 0.9  # of free memory: the rest is for weights' pages and everything else


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to step."""

    file: ModelFile
    model: Model
    runner: Runner
    cutter: Cutter
    around: Around
    weight_bytes_per_token: int
    kv_bytes_per_cell: int


def load_model(
    path: Path,
    options: EngineOptions,
    draft: Path | None = None,
    backend: Backend | None = None,
    serving: ServingOptions | None = None,
) -> LoadedModel:
    """Opens, checks, plans and lowers; `draft`: the file of the draft layer, the model's own or another; `backend`: in
    the place of the one that the options name."""
    file = open_model(path)
    model = models.load(file) if draft is None else _with_draft(file, draft)
    kv: KVType = options.kv  # type: ignore[assignment]  # config checks it
    max_model_len = fit_context(_Demand.of(model, options, kv), _context(model, options), options)
    backend = backend or _backend(options)
    prefill = min(options.prefill, -(-max_model_len // PAGE_CELLS) * PAGE_CELLS)
    cutter = Cutter(prefill if "chunk" in backend.forms else 0)
    limits = Limits(max_model_len, options.max_num_seqs, cutter.chunk_rows)
    state = _state(model, options, kv, max_model_len)
    runner = Runner(model, backend, state, limits)
    around = assemble(file, runner, cutter, serving or ServingOptions())
    return LoadedModel(file, model, runner, cutter, around, runner.weight_bytes_per_token, state.cell_bytes)


def _state(model: Model, options: EngineOptions, kv: KVType, max_model_len: int) -> StatePool:
    """Pools for `--parallel` sequences where memory holds them, and for one of full length in any case. Slots after the
    sequences' receive what taps write; memory of a slot is taken when it is first used."""
    demand = _Demand.of(model, options, kv)
    pages = -(-max_model_len // PAGE_CELLS)
    free = int(hw.memory().available * _USABLE) // max(demand.cell * PAGE_CELLS, 1)
    num_pages = max(min(options.max_num_seqs * pages, free), pages)
    slots = options.max_num_seqs + (MAX_TAPS if demand.slot else 0)
    return StatePool.create(model.state_shape(), num_pages, slots, kv)


def _with_draft(file: ModelFile, draft: Path) -> Model:
    return models.load_with_draft(file, file if draft == Path(file.path) else open_model(draft))


def _context(model: Model, options: EngineOptions) -> int:
    trained = model.config.rope.max_position
    if options.max_model_len > trained:
        raise ContextLengthError(
            f"a context of {options.max_model_len} tokens is asked for; the model was made for {trained}"
        )
    if options.max_num_seqs > MAX_STEP_ROWS:
        raise UsageError(
            f"--parallel is {options.max_num_seqs}; at most {MAX_STEP_ROWS} sequences run at once"
        )
    return options.max_model_len or trained


@dataclass(frozen=True)
class _Demand:
    """Bytes that sequences take: each cell of context, and each sequence besides."""

    cell: int
    slot: int

    @classmethod
    def of(cls, model: Model, options: EngineOptions, kv: KVType) -> "_Demand":
        """Of an architecture; buffers are only named here, nothing is allocated."""
        pool = StatePool.create(model.state_shape(), 1, 1, kv)
        return cls(pool.cell_bytes, pool.slot_bytes)


def fit_context(demand: _Demand, wanted: int, options: EngineOptions) -> int:
    """The context that free memory holds for one sequence: what was asked for, or an error; the largest that fits,
    where nothing was. More sequences share what there is."""
    free = int(hw.memory().available * _USABLE) - demand.slot
    fits = max(free // demand.cell // PAGE_CELLS * PAGE_CELLS, 0)
    if wanted <= fits:
        return wanted
    needed = (demand.cell * wanted + demand.slot) / 2**30
    text = f"a context of {wanted} tokens needs {needed:.1f} GiB, {max(free, 0) / 2**30:.1f} GiB are free"
    if options.max_model_len or fits < PAGE_CELLS:
        raise ContextLengthError(f"{text}; --max-context {fits} fits" if fits else text)
    log.logger(__name__).warning("%s; %d tokens are taken", text, fits)
    return fits


def _backend(options: EngineOptions) -> Backend:
    if options.backend == "reference":
        return ReferenceBackend("float")
    if options.backend == "contract":
        return ReferenceBackend("contract")
    if options.backend == "auto" and (gpu := _gpu(options)) is not None:
        from strata.backends.cuda import open_gpu

        return open_gpu(gpu)
    from strata.backends.cpu import CpuBackend  # the compiled extension is loaded only where it is used

    return CpuBackend(options.threads or hw.cpu_count(), options.isa)


def _gpu(options: EngineOptions) -> int | None:
    """The GPU that the options choose; None for the CPU."""
    if options.device == "cpu":
        return None
    if options.device == "auto":
        from strata.backends.cuda import gpu_count

        return 0 if gpu_count() else None
    number = options.device.removeprefix("cuda").removeprefix(":")
    return int(number or 0)
