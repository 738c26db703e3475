"""Tracing: programs that also keep each router's choice, and what writes them down after a step."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend
from strata.errors import UsageError
from strata.memory import Placement
from strata.memory.route_trace import RouteHeader, RouteWriter
from strata.ops import Buffer, Builder, Form, StepBuffers
from strata.ops.copy_rows import CopyColumns
from strata.ops.op import Op
from strata.ops.router import Router


class RouteTracer:
    """Keeps the choices of every router of a program in buffers that all programs of a form share: a chunk may stand
    between two layers while steps run."""

    def __init__(self, path: Path, placement: Placement):
        self._path, self._sizes = path, placement.model
        self._buffers: dict[Form, list[Buffer]] = {"step": [], "chunk": []}
        self._writer: RouteWriter | None = None

    def builder(self, steps: StepBuffers, rows: int, form: Form) -> Builder:
        """A builder whose programs also copy what routers choose."""
        return _TracingBuilder(self._buffers[form], steps, rows, form)

    def bind(self, backend: Backend) -> None:
        """Opens the file; comes after the programs are made."""
        routers = self._buffers["step"]
        if not routers:
            raise UsageError(f"--trace-routes {self._path}: the model has no routed experts")
        self._arrays: dict[Form, list[NDArray[Any]]] = {
            form: [backend.array(b) for b in buffers] for form, buffers in self._buffers.items()
        }
        sizes = self._sizes.expert_bytes[: len(routers)]
        header = RouteHeader(self._sizes.num_experts, routers[0].shape[1], sizes)
        self._writer = RouteWriter(self._path, header)

    def take(self, rows: int, form: Form) -> None:
        """Writes the choices of the step's first `rows` rows."""
        assert self._writer is not None
        chosen = np.stack([np.asarray(a[:rows]) for a in self._arrays[form]], axis=1)
        self._writer.write(chosen, chunk=form == "chunk")


class _TracingBuilder(Builder):
    def __init__(self, buffers: list[Buffer], steps: StepBuffers, rows: int, form: Form):
        super().__init__(steps, rows, form)
        self._buffers, self._routers = buffers, 0

    def emit(self, op: Op) -> None:
        super().emit(op)
        if isinstance(op, Router):
            if self._routers == len(self._buffers):
                shape = (self.steps.tokens.shape[0], op.topk_ids.shape[1])
                self._buffers.append(Buffer(f"routes.{self.form}.{self._routers}", shape, "i32", "output"))
            super().emit(CopyColumns(op.topk_ids, self._buffers[self._routers], 0, 0, op.topk_ids.shape[1]))
            self._routers += 1
