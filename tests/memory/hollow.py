"""Model files of any size whose tensors are holes: for what reads headers alone."""

from pathlib import Path

from strata.synth.blocks import fitting_type
from strata.synth.files import Entry, ParallelWriter
from strata.synth.geometry import Geometry
from strata.synth.layout import PLANES, tensors
from strata.synth.metadata import metadata


def write_hollow(path: Path, geometry: Geometry, types: dict[str, str] | None = None) -> Path:
    """A file with all tensors of a planted model and none of their bytes."""
    kinds = PLANES | (types or {})
    entries = [Entry(t.name, t.ne, fitting_type(kinds[t.plane], t.ne[0])) for t in tensors(geometry)]
    writer = ParallelWriter(path, 1)
    writer.open(metadata(geometry, "hollow", 23), entries)
    writer.finish()
    return path
