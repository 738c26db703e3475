"""The builder: op functions emit records on it; `finish` plans the arena and returns the program."""

from collections.abc import Callable

from strata.ops.arena import Interval, place
from strata.ops.buffers import Buffer, DType
from strata.ops.op import Op
from strata.ops.program import Program
from strata.ops.step import Form, StepBuffers


class Builder:
    """Collects the ops of one program, in one form, for steps of up to `bucket` rows."""

    def __init__(self, steps: StepBuffers, bucket: int, form: Form = "step"):
        self.steps = steps
        self.bucket = bucket
        self.form = form
        self._ops: list[Op] = []
        self._marks: dict[str, int] = {}
        self._derived: dict[tuple[Buffer, str], Buffer] = {}
        self._repeatable: int | None = None

    def rows(self, width: int, name: str, like: Buffer | None = None, dtype: DType = "f32") -> Buffer:
        """A scratch buffer [rows, width] with the live rows of `like` (of the step, when not given)."""
        first = self.bucket if like is None else like.shape[0]
        live = self.steps.num_rows if like is None else like.live
        return Buffer(f"{name}.{len(self._ops)}", (first, width), dtype, live=live)

    def emit(self, op: Op) -> None:
        """Appends an op record. Emitting an op that writes a buffer twice drops what was derived from it."""
        outputs = op.outputs
        for key in [key for key in self._derived if key[0] in outputs]:
            del self._derived[key]
        self._ops.append(op)

    def derived(self, source: Buffer, how: str) -> Buffer | None:
        """What `remember` stored: a buffer computed from `source` that several ops share (its quantised form)."""
        return self._derived.get((source, how))

    def remember(self, source: Buffer, how: str, result: Buffer) -> Buffer:
        """Stores `result` for later `derived` calls and returns it."""
        self._derived[source, how] = result
        return result

    def constant(self, name: str, make: Callable[[], Buffer]) -> Buffer:
        """The constant of that name, made once for all programs that share the step buffers."""
        if name not in self.steps.constants:
            self.steps.constants[name] = make()
        return self.steps.constants[name]

    def mark(self, name: str, repeatable: bool = False) -> None:
        """Names the place before the next op, so that a replay may run the program in parts.

        The part after a `repeatable` mark may run several times: what it reads from before stays until the end.
        """
        self._marks[name] = len(self._ops)
        if repeatable:
            self._repeatable = len(self._ops)

    def finish(self) -> Program:
        """The program, with every scratch buffer placed by its lifetime."""
        spans: dict[Buffer, Interval] = {}
        for i, op in enumerate(self._ops):
            for buffer in (*op.inputs, *op.outputs):
                if buffer.role == "scratch":
                    first = spans[buffer].first if buffer in spans else i
                    spans[buffer] = Interval(first, i, buffer.nbytes)
        offsets, size = place([self._kept(span) for span in spans.values()])
        placed = dict(zip(spans, offsets, strict=True))
        return Program(tuple(self._ops), self.bucket, placed, size, self._marks, self._repeatable)

    def _kept(self, span: Interval) -> Interval:
        if self._repeatable is None or not span.first < self._repeatable <= span.last:
            return span
        return Interval(span.first, len(self._ops), span.nbytes)
