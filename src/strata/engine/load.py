"""From a path and options to a runner: the order of loading, and the checks that come before memory is taken."""

from dataclasses import dataclass
from pathlib import Path

from strata import hw, models
from strata.backends import Backend, ReferenceBackend
from strata.config import EngineOptions
from strata.engine.runner import MAX_LOGIT_ROWS, Limits, Runner
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile, open_model
from strata.memory import KVPool
from strata.models import Model
from strata.ops import PAGE_CELLS


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to step."""

    file: ModelFile
    model: Model
    runner: Runner
    weight_bytes_per_token: int
    kv_bytes_per_cell: int


def load_model(path: Path, options: EngineOptions) -> LoadedModel:
    """Opens, checks, plans and lowers."""
    file = open_model(path)
    model = models.load(file)
    limits = _limits(model, options)
    layers, kv_heads, head_dim = model.kv_shape()
    pages = limits.max_num_seqs * -(-limits.max_model_len // PAGE_CELLS)
    kv = KVPool.create(layers, kv_heads, head_dim, pages, options.kv)  # type: ignore[arg-type]  # config checks it
    runner = Runner(model, _backend(options), kv, limits)
    return LoadedModel(file, model, runner, runner.weight_bytes_per_token, kv.nbytes // (pages * PAGE_CELLS))


def _limits(model: Model, options: EngineOptions) -> Limits:
    trained = model.config.max_position
    if options.max_model_len > trained:
        raise ContextLengthError(
            f"--max-context is {options.max_model_len}; the model was made for {trained} tokens"
        )
    if options.max_num_seqs > MAX_LOGIT_ROWS:
        raise UsageError(
            f"--parallel is {options.max_num_seqs}; at most {MAX_LOGIT_ROWS} sequences run at once"
        )
    max_model_len = options.max_model_len or trained
    rows = min(options.prefill, -(-max_model_len // PAGE_CELLS) * PAGE_CELLS)
    return Limits(max_model_len, options.max_num_seqs, max(rows, MAX_LOGIT_ROWS))


def _backend(options: EngineOptions) -> Backend:
    if options.backend == "reference":
        return ReferenceBackend("float")
    if options.backend == "contract":
        return ReferenceBackend("contract")
    from strata.backends.cpu import CpuBackend  # the compiled extension is loaded only where it is used

    return CpuBackend(options.threads or hw.cpu_count(), options.isa)
