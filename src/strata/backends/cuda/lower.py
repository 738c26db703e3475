"""Lowering rules: for each op the launches that compute it. Files lower_*.py register theirs here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from strata.backends.cuda.driver import Arg, DeviceProperties, Kernel, Launch, Source
from strata.ops.buffers import Buffer, Weight
from strata.ops.op import Op
from strata.quants import Format

if TYPE_CHECKING:
    from strata.backends.cuda.kv_stage import StagedChunk
    from strata.backends.cuda.tier import ExpertTier

FILE = "file"  # layouts of weights on the device: the file's bytes, or the planes of native/include/strata/pack.h
PACKED = "packed"
FAR = "far"  # the file's bytes, in page-locked RAM where the GPU's memory is short: for tables of rows


@dataclass(frozen=True)
class TableBox:
    """Addresses in a mailbox of n-gram rows (native/include/strata/tiers.h); all 0: the table is there itself."""

    head: int = 0
    ids: int = 0
    rows: int = 0
    posts: int = 0  # u32 on the device: requests so far
    limit_ns: int = 0


@dataclass(frozen=True)
class Context:
    """Where things are on the device, and what the launches of one program share."""

    properties: DeviceProperties
    bucket: int  # rows the program is built for
    buffer: Callable[[Buffer], int]  # address; of a q8 buffer its first plane's
    planes: Callable[[Buffer], tuple[int, int, int]]  # of a q8 buffer: codes, scales, sums
    weight: Callable[[Weight, str], int]  # address in that layout; placed at the first call
    experts: Callable[[Weight], int]  # uint64 [num_experts], each the address of one expert's packed bytes
    scratch: Callable[[int], int]  # address of so many bytes that live from the call to the op's last launch
    counters: Callable[
        [int], int
    ]  # address of so many zeroed uint32 of this op's own; kernels leave them zero
    box: Callable[[Buffer], TableBox]  # where the table rows of these ids are asked for
    faults: int  # u32 [32], mapped: fault bit i is reported by storing 1 at [i]
    tier: "ExpertTier | None" = None  # of experts that do not all lie in the GPU's memory
    staged: "StagedChunk | None" = None  # of a chunk that reads spilled cells from a stage

    def staying(self, each: int = 1) -> int:
        """Thread blocks of a kernel whose thread blocks stay, `each` on a multiprocessor: so many find room at once,
        also while experts are fetched beside it. Those that came later would take as long again."""
        beside = 0 if self.tier is None else self.tier.fetchers(self.bucket)
        return max(self.properties.multiprocessors * each - beside, self.properties.multiprocessors // 2)

    def live(self, buffer: Buffer) -> np.uint64:
        """Address of the buffer's live-row count, i32 [1]."""
        assert buffer.live is not None, f"{buffer} has no live-row count"
        return pointer(self.buffer(buffer.live))

    def at(self, *buffers: Buffer | None) -> list[Arg]:
        """Addresses of buffers; 0 for none."""
        return [pointer(0 if b is None else self.buffer(b)) for b in buffers]

    def q8(self, buffer: Buffer) -> list[Arg]:
        """Addresses of the three planes."""
        return [pointer(a) for a in self.planes(buffer)]

    def raw(self, *weights: Weight | None) -> list[Arg]:
        """Addresses of weights as the file stores them (norms, tables, float matrices); 0 for none."""
        return [pointer(0 if w is None else self.weight(w, FILE)) for w in weights]

    def rows(self, table: Weight) -> np.uint64:
        """Address of a table of which a step looks up few rows, as the file stores it."""
        return pointer(self.weight(table, FAR))

    def packed(self, weight: Weight) -> np.uint64:
        """Address of the planes of a quantised matrix."""
        return pointer(self.weight(weight, PACKED))


def pointer(address: int) -> np.uint64:
    """An address as an argument."""
    return np.uint64(address)


def ints(*values: int) -> list[Arg]:
    """Sizes as arguments."""
    return [np.int32(v) for v in values]


def floats(*values: float) -> list[Arg]:
    """Constants as arguments."""
    return [np.float32(v) for v in values]


def launch(
    file: str,
    entry: str,
    grid: int | tuple[int, ...],
    block: int,
    args: Sequence[Arg],
    *,
    macros: Sequence[tuple[str, str | int]] = (),
    shared: int = 0,
    dependent: bool = True,
    cluster: int = 1,
    reads: Sequence[tuple[np.uint64, Weight]] = (),
    ahead: bool = False,
) -> Launch:
    """A launch of `entry` of kernels/`file`; `reads`: where dense weights lie that it streams; `ahead`: it takes memory
    to ask for early, as the last two arguments, which this adds."""
    sizes = (grid,) if isinstance(grid, int) else grid
    x, y, z = (*sizes, 1, 1)[:3]
    kernel = Kernel(Source(file, tuple(macros)), entry)
    runs = tuple((int(address), weight.nbytes) for address, weight in reads)
    more = (pointer(0), np.uint32(0)) if ahead else ()
    return Launch(kernel, (x, y, z), block, (*args, *more), shared, dependent, cluster, runs, ahead=ahead)


def capability(at: Context) -> int:
    """The device's compute capability: 90 of sm_90."""
    return int(at.properties.arch.removeprefix("sm_").rstrip("a"))


def tensor_cores(at: Context) -> bool:
    """Whether the device multiplies f16 16 values deep and copies asynchronously, as prompts' kernels ask for."""
    return capability(at) >= 80


def type_macro(fmt: Format, name: str = "STRATA_TYPE") -> tuple[str, str | int]:
    """The macro that names a block format: an enumerator of QuantType."""
    return name, f"QuantType::{fmt.name}"


@singledispatch
def lower(op: Op, at: Context) -> list[Launch]:
    """The launches of an op."""
    raise NotImplementedError(f"no CUDA kernel for op {op.kind}")
