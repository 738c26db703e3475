"""Two backends for one model: the first layers on the host, the others, the head and sampling on a device.

The residual crosses once a step: what ops of the host's part leave in scratch and ops of the device's part read lies
in memory that both see. Step inputs have one array, which both read. Keys
and values lie with the layer that they belong to.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from strata.backends.base import Arena, Backend, PeekingReplay, Replay, Stamp
from strata.errors import UnsupportedError
from strata.ops.buffers import Buffer
from strata.ops.op import Op
from strata.ops.program import Program
from strata.ops.step import Form


class HostBackend(Backend, Protocol):
    """A backend whose arrays are the host's own memory."""

    def adopt(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """From now on the buffer lies there."""


class SplitBackend:
    """`layers` of the model are the host's; programs without layers are the device's."""

    runs_ahead = False  # the host's part needs the token

    def __init__(self, device: Backend, host: HostBackend, layers: int):
        self.device, self._host, self._layers = device, host, layers
        self._hosted: set[Buffer] = set()  # states that the host's part uses
        self.name = device.name
        self.forms: tuple[Form, ...] = tuple(form for form in device.forms if form in host.forms)

    @property
    def gpu(self) -> Any:
        """What the plan is made for, where the device tells."""
        return getattr(self.device, "gpu", None)

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """Nothing: programs do not run ahead."""

    def stamp(self) -> Stamp:
        """This moment on the device, which comes after the host's part."""
        return self.device.stamp()

    def end_prompts(self) -> None:
        """What the device set aside is free."""
        self.device.end_prompts()

    def close(self) -> None:
        """Gives both back."""
        self.device.close()
        self._host.close()

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """The array of whoever uses the buffer; of an input the device's, which the host's part reads too."""
        return self._host.array(buffer) if buffer in self._hosted else self.device.array(buffer)

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Room for either part."""
        self.device.reserve(arena_bytes, arena)
        self._host.reserve(arena_bytes, arena)

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> Replay:
        """Both parts, each by its own backend."""
        cut = program.marks.get(f"layer.{self._layers}")
        if cut is None:
            return self.device.lower(program, arena, own_faults)
        first, crossing, second = parts(program, cut)
        device = self.device.lower(second, arena)  # places the inputs that it reads
        self._share(first)
        host = self._host.lower(first, arena)
        assert isinstance(host, PeekingReplay)
        crossings = [Crossing(host.peek(was), self.device.array(now)) for was, now in crossing.items()]
        return SplitReplay(cut, len(program), host, device, self.array(_live(crossing)), crossings)

    def _share(self, first: Program) -> None:
        for buffer in first.buffers():
            if buffer.role == "input":
                self._host.adopt(buffer, self.device.array(buffer))
            elif buffer.role == "state":
                self._hosted.add(buffer)


@dataclass(frozen=True)
class Crossing:
    """One buffer on both sides: a view of the host's scratch, and where the device reads it."""

    source: NDArray[Any]
    target: NDArray[Any]


class SplitReplay:
    """Ops [0, cut) are the host's, which runs them when they are submitted."""

    def __init__(
        self, cut: int, end: int, host: Replay, device: Replay, live: NDArray[Any], crossings: list[Crossing]
    ):
        self._cut, self._end, self._host, self._device = cut, end, host, device
        self._live, self._crossings = live, crossings

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Both parts as far as they are asked for; raises what either reports."""
        if self._run_host(begin, end):
            self._device.run(*self._of_device(begin, end))

    def prepare(self, begin: int = 0, end: int | None = None) -> None:
        """What the device's part needs."""
        if end is None or end > self._cut:
            self._device.prepare(*self._of_device(begin, end))

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Runs the host's part and starts the device's."""
        if self._run_host(begin, end):
            self._device.submit(*self._of_device(begin, end))

    def ready(self) -> bool:
        """What the device says."""
        return self._device.ready()

    def _run_host(self, begin: int, end: int | None) -> bool:
        """Runs what is the host's; whether anything is the device's."""
        if begin < self._cut:
            last = self._cut if end is None else min(end, self._cut)
            self._host.run(begin, last)
            if last == self._cut:
                count = int(self._live[0])
                for crossing in self._crossings:
                    crossing.target[:count] = crossing.source[:count]
        return end is None or end > self._cut

    def _of_device(self, begin: int, end: int | None) -> tuple[int, int]:
        return max(begin - self._cut, 0), (self._end if end is None else end) - self._cut

    def wait(self) -> None:
        """Until the device is done."""
        self._device.wait()

    def check(self) -> None:
        """What the device reported."""
        self._device.check()

    def peek(self, buffer: Buffer) -> NDArray[Any]:
        """A scratch buffer of the device's part, where it can be looked at."""
        if not isinstance(self._device, PeekingReplay):
            raise UnsupportedError(
                "this backend does not give the features of rows, so there are no embeddings"
            )
        return self._device.peek(buffer)


def parts(program: Program, cut: int) -> tuple[Program, dict[Buffer, Buffer], Program]:
    """Ops [0, cut); of the scratch buffers that later ops read, the inputs that stand for them; the later ops."""
    first, later = program.ops[:cut], program.ops[cut:]
    written = {b for op in first for b in op.outputs if b.role == "scratch"}
    read = dict.fromkeys(b for op in later for b in op.inputs if b in written)
    # page-locked memory, which no snapshot of the step inputs copies
    crossing = {b: replace(b, name=f"crossing.{b.name}", role="polled") for b in read}
    assert not any(b in written for op in later for b in op.outputs), (
        "a buffer of both parts is written twice"
    )
    marks = {name: at for name, at in program.marks.items() if at < cut}
    moved = {name: max(at - cut, 0) for name, at in program.marks.items()}
    border = None if program.repeatable is None else max(program.repeatable - cut, 0)
    begin = replace(program, ops=first, marks=marks, repeatable=None)
    end = replace(program, ops=tuple(_rewired(op, crossing) for op in later), marks=moved, repeatable=border)
    return begin, crossing, end


def _rewired(op: Op, crossing: dict[Buffer, Buffer]) -> Op:
    changed = {
        f.name: crossing[b]
        for f in fields(op)
        if isinstance(b := getattr(op, f.name), Buffer) and b in crossing
    }
    return replace(op, **changed) if changed else op


def _live(crossing: dict[Buffer, Buffer]) -> Buffer:
    """The count of rows that cross."""
    found = {b.live for b in crossing}
    assert len(found) == 1 and None not in found and all(b.dtype in ("f32", "f16") for b in crossing)
    live = found.pop()
    assert live is not None
    return live
