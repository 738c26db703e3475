"""A program: the op records of one row bucket, with their memory planned. Backends lower it; nothing changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.ops.buffers import Buffer, Weight
from strata.ops.op import Op


@dataclass(frozen=True, eq=False)
class Program:
    """Ops in order; `offsets` places every scratch buffer in an arena of `arena_bytes`."""

    ops: tuple[Op, ...]
    bucket: int
    offsets: Mapping[Buffer, int]
    arena_bytes: int
    marks: Mapping[str, int] = field(default_factory=dict)  # name -> index of the first op after it
    repeatable: int | None = None  # ops from here on may run again: what they read from before stays in place

    def __len__(self) -> int:
        return len(self.ops)

    def buffers(self) -> list[Buffer]:
        """Every buffer named, once, in order of first use."""
        found: dict[Buffer, None] = {}
        for op in self.ops:
            for buffer in (*op.inputs, *op.outputs):
                if buffer.live is not None:
                    found.setdefault(buffer.live)
                found.setdefault(buffer)
        return list(found)

    def weights(self) -> list[Weight]:
        """Every weight named, once, in order of first use."""
        return list(dict.fromkeys(weight for op in self.ops for weight in op.weights))

    def __str__(self) -> str:
        lines = [f"program of {len(self.ops)} ops, {self.bucket} rows, arena {self.arena_bytes} bytes"]
        for i, op in enumerate(self.ops):
            names = [str(x) for x in (*op.inputs, *op.weights)]
            lines.append(f"{i:4} {op.kind:10} {', '.join(names)} -> {', '.join(map(str, op.outputs))}")
        return "\n".join(lines)
