"""What a program will take of a GPU's memory, found by lowering it without one: buffers, and scratch of its ops."""

from collections.abc import Iterable
from dataclasses import dataclass

from strata.backends.cuda.driver import DeviceProperties
from strata.backends.cuda.fuse import Group, groups, plan
from strata.backends.cuda.lower import Context, TableBox
from strata.backends.cuda.workspace import Meter
from strata.ops.program import Program
from strata.ops.step import Form

# What is planned for where no device is there to ask.
PLANNED = DeviceProperties("planned", "sm_90", 132, 0, 227 << 10, 50 << 20)
_SOMEWHERE = 256  # an address


@dataclass(frozen=True)
class Needs:
    """Bytes: buffers that ops hand each other, and the most that one op takes besides."""

    arena: int
    scratch: int


def needs(program: Program, form: Form, properties: DeviceProperties = PLANNED) -> Needs:
    """Of a program as the backend will lower it."""
    found = groups(program, True, program.marks.values() if form == "chunk" else ())
    meter = Meter()
    context = Context(
        properties,
        program.bucket,
        buffer=lambda _: _SOMEWHERE,
        planes=lambda _: (_SOMEWHERE,) * 3,
        weight=lambda *_: _SOMEWHERE,
        experts=lambda _: _SOMEWHERE,
        scratch=meter.take,
        counters=meter.counters,
        box=lambda _: TableBox(),
        faults=_SOMEWHERE,
    )
    measure(found, context, meter)
    return Needs(plan(program, found)[1], meter.most)


def measure(found: Iterable[Group], context: Context, meter: Meter) -> None:
    """Lowers groups with a context whose scratch is counted."""
    for group in found:
        meter.reset()
        group.launches(context)
