"""`strata inspect` and `strata verify`: what a model file holds, and whether it is whole."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.options import Json
from strata.cli.output import print_json

File = Annotated[Path, typer.Argument(metavar="FILE", help="GGUF file (of a split model: any part).")]


def inspect(file: File, as_json: Json = False) -> None:
    """Say what a model file holds: architecture, parameters, types and bytes by role, without running it."""
    from strata.gguf import open_model
    from strata.models import summary

    with open_model(file) as model_file:
        found = summary.summarise(model_file)
    if as_json:
        print_json(found.to_json(), indent=2)
    else:
        print("\n".join(summary.lines(found)))


def verify(
    file: File,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="What the file's SHA-256 must be.")
    ] = None,
) -> None:
    """Check the structure of a model file and all its parts, and print each one's SHA-256."""
    from strata import gguf

    checked = gguf.verify(file, sha256)
    for part in checked.files:
        print(f"{part.sha256}  {part.path}")
    print(f"ok: {checked.tensors} tensors, {sum(part.nbytes for part in checked.files):,} bytes")
