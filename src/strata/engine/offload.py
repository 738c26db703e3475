"""Layers of a dense model that the CPU computes beside a GPU: how many, what that changes in the plan, the backend."""

from dataclasses import replace

from strata import hw
from strata.backends import Backend
from strata.backends.cpu import CpuBackend
from strata.backends.split import SplitBackend
from strata.config import EngineOptions
from strata.errors import MemoryLimitError, UnsupportedError, UsageError
from strata.gguf import ModelFile
from strata.hw import Machine
from strata.memory import Placement, PlanOptions, plan
from strata.memory.plan_parts import Part
from strata.memory.plan_sizes import GIB, CellBytes, ModelSizes
from strata.models import Model
from strata.models.roles import split_block


def with_offload(
    file: ModelFile, model: Model, options: EngineOptions, sizes: ModelSizes, machine: Machine
) -> Placement:
    """The placement, whose `offloaded` layers are the CPU's; MemoryLimitError where none fits."""
    wanted, priced = options.offload_layers, PlanOptions.of(options)
    count = 0 if wanted == "auto" else int(wanted)
    if count:
        return _priced(file, sizes, machine, priced, _checked(count, model, sizes, machine))
    try:
        return plan(sizes, machine, priced)
    except MemoryLimitError as error:
        if wanted != "auto" or not machine.gpus or refusal(model, sizes):
            raise
        return _fewest(file, sizes, machine, priced, error)


def _checked(count: int, model: Model, sizes: ModelSizes, machine: Machine) -> int:
    """A number of layers that can be the CPU's."""
    if not machine.gpus:
        raise UsageError(f"--offload-layers is {count}, and there is no GPU that layers could leave")
    if why := refusal(model, sizes):
        raise UnsupportedError(f"--offload-layers is {count}; {why}")
    if count >= sizes.layers:
        raise UsageError(
            f"--offload-layers is {count}; the model has {sizes.layers} layers, and one at least stays on the GPU "
            "(--device cpu computes all of them without one)"
        )
    return count


def refusal(model: Model, sizes: ModelSizes) -> str:
    """Why a model's layers cannot be divided; empty where they can."""
    shape = model.state_shape()
    if sizes.num_routed_experts:
        return "of models with routed experts, experts leave the GPU and not layers (--expert-cache)"
    if shape.delta or shape.rings or shape.index is not None or shape.history:
        return "layers with recurrent state or an indexer cannot be divided between CPU and GPU"
    return ""


def split(backend: Backend, layers: int, options: EngineOptions) -> Backend:
    """The backend with the first layers on the CPU."""
    if not layers:
        return backend
    return SplitBackend(backend, CpuBackend(options.threads or hw.cpu_count(), options.isa), layers)


def _fewest(
    file: ModelFile, sizes: ModelSizes, machine: Machine, priced: PlanOptions, whole: MemoryLimitError
) -> Placement:
    """The plan with the fewest layers on the CPU."""
    for count in range(1, sizes.layers):
        try:
            placement = _priced(file, sizes, machine, priced, count)
        except MemoryLimitError:
            continue
        note = f"{count} of {sizes.layers} layers are computed by the CPU: {whole}"
        return replace(placement, notes=(*placement.notes, note))
    raise whole


def _priced(
    file: ModelFile, sizes: ModelSizes, machine: Machine, priced: PlanOptions, count: int
) -> Placement:
    """The plan of the layers that stay; MemoryLimitError where either side is too small."""
    weights = layer_bytes(file, count)
    stay = replace(
        sizes,
        dense=sizes.dense - weights,
        cells={kv: _part(cell, sizes.layers - count, sizes.layers) for kv, cell in sizes.cells.items()},
    )
    placement = plan(stay, machine, priced)
    cell = _part(sizes.cell(placement.choice.kv), count, sizes.layers)
    part, ram = Part("layers on the CPU", weights + cell.nbytes * placement.choice.cells), placement.ram
    if ram.free < part.nbytes:
        raise MemoryLimitError(
            f"{count} layers on the CPU need {part.nbytes / GIB:.3g} GiB of RAM, and {max(ram.free, 0) / GIB:.3g} are "
            "left; lower --offload-layers or --max-context"
        )
    return replace(placement, ram=replace(ram, parts=(*ram.parts, part)), offloaded=count)


def layer_bytes(file: ModelFile, count: int) -> int:
    """Bytes of the weights of the first layers."""
    blocks = ((split_block(name)[0], tensor.nbytes) for name, tensor in file.tensors.items())
    return sum(nbytes for block, nbytes in blocks if block is not None and block < count)


def _part(cell: CellBytes, layers: int, of: int) -> CellBytes:
    """A cell's bytes in some of the layers, which are all alike; rounded up."""
    return replace(cell, fixed=-(-cell.fixed * layers // of))
