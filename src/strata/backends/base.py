"""What the engine asks of a backend. A backend owns the memory behind every buffer that is not scratch."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

from strata.errors import FaultError
from strata.ops.buffers import Buffer
from strata.ops.program import Program
from strata.ops.sample import FAULT_NO_TOKEN, FAULT_NON_FINITE, FAULT_RANGE
from strata.ops.step import Form

FAULT_MEMORY = 8  # of native/cpu/op.h, as the bits that sampling's reference knows too
FAULT_WAIT, FAULT_READ, FAULT_ENTRY = 16, 32, 64  # of native/include/strata/tiers.h


# Scratch memory of programs that never run between each other's parts: a chunk may stand still while steps run.
Arena = Literal["step", "chunk"]


# In a step's `tokens`, where a backend runs ahead: the id that sampling chose last for the same row; and DRAFTED + i,
# what element i of the drafts says, 0 where it says nothing.
SAMPLED = -(1 << 31)
DRAFTED = SAMPLED + 1


class Replay(Protocol):
    """A lowered program."""

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Runs ops [begin, end); raises FaultError when a kernel reported one."""

    def prepare(self, begin: int = 0, end: int | None = None) -> None:
        """Does what the first replay of ops [begin, end) would have to do before it starts."""

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Starts ops [begin, end) with the inputs as they are now, after everything that was started before. A backend
        that does not run ahead computes them and may raise FaultError."""

    def ready(self) -> bool:
        """Of a program in parts: takes a step towards the first one, beside steps that go on; whether it may start. The
        first part starts without being asked, too, and may have to wait for what is missing."""

    def wait(self) -> None:
        """Until what was submitted last is done."""

    def check(self) -> None:
        """Raises FaultError for what any program reported since the last check."""


class Stamp(Protocol):
    """A moment in the order of what a backend computes: after everything that was started before it was made."""

    @property
    def passed(self) -> bool:
        """Whether all of that is done."""

    def wait(self) -> None:
        """Until it is."""

    def ms_since(self, earlier: Any) -> float:
        """Milliseconds from another stamp of the backend to this one; both have passed."""


class HostStamp:
    """Of a backend that has computed what was started when `submit` returns."""

    passed = True

    def __init__(self) -> None:
        self._at = perf_counter()

    def wait(self) -> None:
        """Nothing is under way."""

    def ms_since(self, earlier: "HostStamp") -> float:
        """Milliseconds between them."""
        return (self._at - earlier._at) * 1e3


@runtime_checkable
class PeekingReplay(Replay, Protocol):
    """A lowered program whose scratch can be looked at."""

    def peek(self, buffer: Buffer) -> NDArray[Any]:
        """A host view of a scratch buffer, whose content lasts until an op that comes later takes its place."""


class Backend(Protocol):
    """Lowers programs onto memory of its own."""

    name: str
    runs_ahead: bool  # whether submitted programs compute while the host goes on
    forms: tuple[Form, ...]  # of programs that it can lower

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> Replay:
        """Fixes kernels and addresses. Buffers shared between programs keep one place. `own_faults`: what this program
        reports is told by its own `check` alone, or by that of others made so."""

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Makes room for the scratch of an arena's largest program; comes before the first `lower` into it."""

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """From now on SAMPLED in `tokens` stands for the element of `ids`, and DRAFTED + i for element i of `drafts`;
        only where the backend runs ahead."""

    def stamp(self) -> Stamp:
        """This moment."""

    def end_prompts(self) -> None:
        """No chunk is begun, and none follows soon: what was set aside for chunks is free. Called between steps."""

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """A host view of an input, state or output buffer."""

    def close(self) -> None:
        """Gives back what it holds of a device; raises nothing, and nothing may be used afterwards."""


def raise_fault(bits: int, program: Program, detail: str = "") -> None:
    """Names the fault bits a replay returned; `detail`: what a tier says of its own."""
    causes: Sequence[str] = [
        text
        for bit, text in (
            (FAULT_NON_FINITE, "a non-finite activation"),
            (FAULT_RANGE, "a token, position, sequence or page outside its table"),
            (FAULT_NO_TOKEN, "a token mask that leaves no token"),
            (FAULT_MEMORY, "no memory for a worker's scratch"),
            (FAULT_WAIT, "a worker, a copy or a read that did not answer in time"),
            (FAULT_READ, detail or "a read of weights that failed"),
            (FAULT_ENTRY, "a residency entry that changed under the step"),
        )
        if bits & bit
    ]
    if bits:
        raise FaultError(f"step of {program.bucket} rows failed: {' and '.join(causes) or f'fault {bits}'}")
