"""From a checkpoint directory to a GGUF file."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from strata.convert.activations import Activations
from strata.convert.blocks import Family, Source
from strata.convert.checkpoint import Checkpoint, Floats
from strata.convert.config import read_config
from strata.convert.families import draft_tensors, find_family, has_draft, left_over, tensors, text_name
from strata.convert.metadata import architecture_metadata, sampling_metadata
from strata.convert.rows import Plane, Planned
from strata.convert.tokenizer import tokenizer_metadata
from strata.convert.types import FILE_TYPES, choose_type, encoded, parse_override, parse_type
from strata.errors import ModelFileError
from strata.gguf import TensorType, write_model


@dataclass(frozen=True)
class Conversion:
    """What is to be written: metadata, and tensors with their types."""

    arch: str
    metadata: dict[str, Any]
    tensors: list[tuple[Planned, TensorType]]
    activations: Activations | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(kind.nbytes(prod(tensor.rows.shape)) for tensor, kind in self.tensors)

    def types(self) -> dict[Plane, Counter[str]]:
        """How many tensors of each purpose got which type."""
        found: dict[Plane, Counter[str]] = {plane: Counter() for plane in Plane}
        for tensor, kind in self.tensors:
            found[tensor.plane][kind.name] += 1
        return {plane: counts for plane, counts in found.items() if counts}

    def write(self, output: str | Path, threads: int | None = None) -> None:
        """Write the file, holding a few pieces of tensors at once."""
        threads = threads or len(os.sched_getaffinity(0))
        specs = [
            (
                t.name,
                tuple(reversed(t.rows.shape)),
                kind,
                encoded(kind, t.rows.pieces(), threads, self._weights(t)),
            )
            for t, kind in self.tensors
        ]
        write_model(output, self.metadata, specs)

    def _weights(self, tensor: Planned) -> Floats | None:
        return None if self.activations is None else self.activations.of(tensor)


def plan_conversion(
    directory: str | Path,
    type_name: str,
    only_draft: bool = False,
    overrides: Sequence[str] = (),
    activations: str | Path | None = None,
) -> Conversion:
    """Read names and shapes and decide everything; for the draft layer alone, only its own shards.

    `overrides`: PATTERN=TYPE. `activations`: a file that weighs the errors of encoders (convert.activations).
    ModelFileError where the checkpoint is incomplete or holds tensors that nothing uses.
    """
    directory = Path(directory)
    wanted, named = parse_type(type_name), [parse_override(text) for text in overrides]
    config = read_config(directory)
    family = find_family(config)
    checkpoint = Checkpoint(directory, text_name)
    source = Source(checkpoint, config, family)
    with_draft = only_draft or has_draft(checkpoint)
    planned = [] if only_draft else list(tensors(source))
    if with_draft:
        planned += draft_tensors(source)
    if not only_draft and (rest := left_over(checkpoint, planned)):
        raise ModelFileError(
            f"{directory}: {len(rest)} tensors have no place in {family.arch}: {', '.join(rest[:3])}"
        )
    chosen = [(tensor, choose_type(tensor, wanted, named)) for tensor in planned]
    metadata = _general(directory, family, only_draft) | _file_type(chosen) | sampling_metadata(config)
    metadata |= architecture_metadata(family, config, checkpoint, with_draft)
    metadata |= tokenizer_metadata(directory, config)
    weighed = None if activations is None else Activations(Path(activations))
    if weighed is not None:
        weighed.check(planned)
    return Conversion(family.arch, metadata, chosen, weighed)


def _general(directory: Path, family: Family, only_draft: bool) -> dict[str, Any]:
    return {
        "general.architecture": family.arch,
        "general.name": directory.resolve().name + (" draft" if only_draft else ""),
        "general.quantization_version": 2,
    }


def _file_type(chosen: list[tuple[Planned, TensorType]]) -> dict[str, Any]:
    """Named after the type that most weights have, as readers expect; nothing where that has no number."""
    weights: Counter[str] = Counter()
    for tensor, kind in chosen:
        weights[kind.name] += prod(tensor.rows.shape)
    most = weights.most_common(1)[0][0]
    return {"general.file_type": FILE_TYPES[most]} if most in FILE_TYPES else {}
