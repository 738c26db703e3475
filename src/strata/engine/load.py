"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass
from pathlib import Path

from strata import hw, log, models
from strata.backends import Backend
from strata.config import EngineOptions
from strata.engine.pieces import Cutter
from strata.engine.runner import Limits, Runner
from strata.engine.tiering import make_backend, open_experts, open_tiers, spare_slots
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile, open_model
from strata.memory import KVType, StatePool
from strata.memory.expert_store import ExpertStore, Progress
from strata.models import Model
from strata.ops import MAX_STEP_ROWS, PAGE_CELLS

_USABLE = 0.9  # of free memory: the rest is for weights' pages and everything else


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to step."""

    file: ModelFile
    model: Model
    runner: Runner
    cutter: Cutter
    weight_bytes_per_token: int
    kv_bytes_per_cell: int
    experts: ExpertStore | None = None  # None: they lie in the file's map


def load_model(
    path: Path,
    options: EngineOptions,
    draft: Path | None = None,
    backend: Backend | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Opens, checks, plans and lowers; `draft`: the file of the draft layer, the model's own or another; `backend`: in
    the place of the one that the options name; `progress` is told of experts that are read."""
    file = open_model(path)
    draft_file = file if draft is None or draft == Path(file.path) else open_model(draft)
    model = models.load(file) if draft is None else models.load_with_draft(file, draft_file)
    kv: KVType = options.kv  # type: ignore[assignment]  # config checks it
    max_model_len = fit_context(_Demand.of(model, options, kv), _context(model, options), options)
    prefill = min(options.prefill, -(-max_model_len // PAGE_CELLS) * PAGE_CELLS)
    experts = None if backend else open_experts(model, (file, draft_file), options, progress)
    if backend is None:
        rows = max(prefill, MAX_STEP_ROWS)
        backend = make_backend(options, open_tiers(model, (file, draft_file), experts, options, rows))
    cutter = Cutter(prefill if "chunk" in backend.forms else 0)
    limits = Limits(max_model_len, options.max_num_seqs, cutter.chunk_rows)
    pages = limits.max_num_seqs * -(-limits.max_model_len // PAGE_CELLS)
    state = StatePool.create(model.state_shape(), pages, limits.max_num_seqs + spare_slots(experts), kv)
    runner = Runner(model, backend, state, limits)
    return LoadedModel(file, model, runner, cutter, runner.weight_bytes_per_token, state.cell_bytes, experts)


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
    """The context that free memory holds: what was asked for, or an error; the largest that fits, where nothing was."""
    free = int(hw.memory().available * _USABLE) - demand.slot * options.max_num_seqs
    fits = max(free // (demand.cell * options.max_num_seqs) // PAGE_CELLS * PAGE_CELLS, 0)
    if wanted <= fits:
        return wanted
    needed = (demand.cell * wanted + demand.slot) * options.max_num_seqs / 2**30
    text = f"a context of {wanted} tokens needs {needed:.1f} GiB, {max(free, 0) / 2**30:.1f} GiB are free"
    if options.max_model_len or fits < PAGE_CELLS:
        raise ContextLengthError(f"{text}; --max-context {fits} fits" if fits else text)
    log.logger(__name__).warning("%s; %d tokens are taken", text, fits)
    return fits
