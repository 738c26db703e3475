"""The plan of a file on a machine: sizes from the file, the placement, and whether it still holds after loading."""

from dataclasses import replace
from pathlib import Path

from strata import hw, models
from strata.backends import Backend
from strata.backends.base import Arena
from strata.config import EngineOptions
from strata.engine.offload import with_offload
from strata.engine.sizing import Measure, Needs, at_rows, model_sizes
from strata.errors import ContextLengthError, MemoryLimitError, UsageError
from strata.gguf import ModelFile, open_model
from strata.hw import Machine
from strata.memory import Placement
from strata.models import Model
from strata.ops import MAX_STEP_ROWS, Program


def open_with_draft(
    path: Path, draft: Path | None, mtp: str = "off"
) -> tuple[ModelFile, Model, ModelFile | None]:
    """The file, its model with a draft layer, and the draft's file: `draft`, or what `mtp` says where that is None."""
    file = open_model(path)
    drafted = _same_or_open(file, draft) if draft is not None else _draft_of(file, mtp)
    if drafted is None:
        return file, models.load(file), None
    return file, models.load_with_draft(file, drafted), drafted


def _draft_of(file: ModelFile, mtp: str) -> ModelFile | None:
    if mtp == "off" or (mtp == "auto" and not models.has_draft(file)):
        return None
    if mtp in ("auto", "on"):
        return file
    return _same_or_open(file, draft_in(Path(mtp)))


def _same_or_open(file: ModelFile, path: Path) -> ModelFile:
    return file if path == Path(file.path) else open_model(path)


def draft_in(path: Path) -> Path:
    """The file itself, or the one file with a draft layer in a folder; UsageError where there is none, or several."""
    if not path.is_dir():
        return path
    found = [p for p in sorted(path.glob("*.gguf")) if models.has_draft(open_model(p))]
    if len(found) != 1:
        many = (
            f"{len(found)} files with a draft layer: {', '.join(p.name for p in found)}" if found else "none"
        )
        raise UsageError(f"--mtp {path}: a folder must hold one GGUF file with a draft layer; it has {many}")
    return found[0]


def make_plan(
    file: ModelFile,
    model: Model,
    options: EngineOptions,
    draft: ModelFile | None,
    machine: Machine,
    measure: Measure | None = None,
) -> Placement:
    """The placement on `machine`; MemoryLimitError where nothing fits. `measure`: of its GPU."""
    sizes = model_sizes(file, model, options, _context(model, options), draft, measure)
    placement = with_offload(file, model, options, sizes, machine)
    if measure is None:
        return placement
    chosen = at_rows(sizes, model, placement.choice, measure)
    if chosen is sizes:
        return placement
    return with_offload(file, model, replace(options, prefill=str(chosen.chunk_rows)), chosen, machine)


def gpu_measure(backend: Backend | None) -> Measure:
    """What programs will take on a backend's GPU, or on one that nobody has yet."""
    from strata.backends.cuda.measure import PLANNED, needs  # the bindings are optional
    from strata.backends.cuda.weights import STAGE_BYTES

    driver = getattr(backend, "driver", None)
    properties = PLANNED if driver is None else driver.properties

    def measured(program: Program, arena: Arena) -> Needs:
        found = needs(program, arena, properties)
        return Needs(found.arena, found.scratch)

    return Measure(measured, STAGE_BYTES)


def plan_file(
    path: Path, options: EngineOptions, draft: Path | None = None, machine: Machine | None = None
) -> Placement:
    """The placement of a model file on a machine, this one when not given, taken as the options say; reads headers
    only."""
    file, model, drafted = open_with_draft(path, draft, options.mtp)
    found = machine or hw.machine(options.threads)
    taken = found.taken_as(options.ram_limit_gib, options.vram_limit_gib, options.link_limit_gbps)
    return make_plan(file, model, options, drafted, taken, gpu_measure(None) if taken.gpus else None)


def check_after_load(placement: Placement, machine: Machine) -> None:
    """MemoryLimitError where memory that was free is not any more, so that the plan's promise cannot be kept.

    Experts may give way: they are in RAM as far as there is room.
    """
    ram = placement.ram
    fixed = ram.used - placement.experts_in_ram
    if machine.ram_capacity < fixed + ram.reserve:
        raise MemoryLimitError(
            f"after loading {machine.ram_capacity / 2**30:.3g} GiB of RAM may be used, the plan had "
            f"{ram.capacity / 2**30:.3g} and needs {(fixed + ram.reserve) / 2**30:.3g} with its reserve; "
            "something else took memory meanwhile: end it, or lower --max-context"
        )


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
