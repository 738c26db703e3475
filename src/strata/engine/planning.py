"""The plan of a file on a machine: sizes from the file, the placement, and whether it still holds after loading."""

from pathlib import Path

from strata import hw, models
from strata.config import EngineOptions
from strata.engine.offload import with_offload
from strata.engine.sizing import model_sizes
from strata.errors import ContextLengthError, MemoryLimitError, UsageError
from strata.gguf import ModelFile, open_model
from strata.hw import Machine
from strata.memory import Placement
from strata.models import Model
from strata.ops import MAX_STEP_ROWS


def open_with_draft(path: Path, draft: Path | None) -> tuple[ModelFile, Model, ModelFile | None]:
    """The file, its model with the draft layer of `draft` (the same file or another), and the draft's file."""
    file = open_model(path)
    if draft is None:
        return file, models.load(file), None
    drafted = file if draft == Path(file.path) else open_model(draft)
    return file, models.load_with_draft(file, drafted), drafted


def make_plan(
    file: ModelFile, model: Model, options: EngineOptions, draft: ModelFile | None, machine: Machine
) -> Placement:
    """The placement on `machine`; MemoryLimitError where nothing fits."""
    context = _context(model, options)
    return with_offload(file, model, options, model_sizes(file, model, options, context, draft), machine)


def plan_file(
    path: Path, options: EngineOptions, draft: Path | None = None, machine: Machine | None = None
) -> Placement:
    """The placement of a model file on a machine, this one when not given, taken as the options say; reads headers
    only."""
    file, model, drafted = open_with_draft(path, draft)
    found = machine or hw.machine(options.threads)
    taken = found.taken_as(options.ram_limit_gib, options.vram_limit_gib, options.link_limit_gbps)
    return make_plan(file, model, options, drafted, taken)


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
