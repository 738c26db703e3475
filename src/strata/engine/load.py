"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass
from pathlib import Path

from strata import hw, models
from strata.backends import Backend, ReferenceBackend
from strata.config import EngineOptions
from strata.engine.pieces import MAX_STEP_ROWS, Cutter
from strata.engine.runner import Limits, Runner
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile, open_model
from strata.memory import KVType, StatePool
from strata.models import Model
from strata.ops import PAGE_CELLS


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to step."""

    file: ModelFile
    model: Model
    runner: Runner
    cutter: Cutter
    weight_bytes_per_token: int
    kv_bytes_per_cell: int


def load_model(path: Path, options: EngineOptions, draft: Path | None = None) -> LoadedModel:
    """Opens, checks, plans and lowers; `draft`: the file of the draft layer, the model's own or another."""
    file = open_model(path)
    model = models.load(file) if draft is None else _with_draft(file, draft)
    max_model_len = _context(model, options)
    cutter = Cutter(min(options.prefill, -(-max_model_len // PAGE_CELLS) * PAGE_CELLS))
    limits = Limits(max_model_len, options.max_num_seqs, cutter.chunk_rows)
    pages = limits.max_num_seqs * -(-limits.max_model_len // PAGE_CELLS)
    kv: KVType = options.kv  # type: ignore[assignment]  # config checks it
    state = StatePool.create(model.state_shape(), pages, limits.max_num_seqs, kv)
    runner = Runner(model, _backend(options), state, limits)
    return LoadedModel(file, model, runner, cutter, runner.weight_bytes_per_token, state.cell_bytes)


def _with_draft(file: ModelFile, draft: Path) -> Model:
    return models.load_with_draft(file, file if draft == Path(file.path) else open_model(draft))


def _context(model: Model, options: EngineOptions) -> int:
    trained = model.config.max_position
    if options.max_model_len > trained:
        raise ContextLengthError(
            f"a context of {options.max_model_len} tokens is asked for; the model was made for {trained}"
        )
    if options.max_num_seqs > MAX_STEP_ROWS:
        raise UsageError(
            f"--parallel is {options.max_num_seqs}; at most {MAX_STEP_ROWS} sequences run at once"
        )
    return options.max_model_len or trained


def _backend(options: EngineOptions) -> Backend:
    if options.backend == "reference":
        return ReferenceBackend("float")
    if options.backend == "contract":
        return ReferenceBackend("contract")
    from strata.backends.cpu import CpuBackend  # the compiled extension is loaded only where it is used

    return CpuBackend(options.threads or hw.cpu_count(), options.isa)
