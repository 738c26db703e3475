"""Fetch the vocabularies of well-known tokenizers with texts and the ids they must become (76 MB), for the tests.

They are llama.cpp's own test data, `ggml-vocab-NAME.gguf` with `.inp` and `.out`, and ship in the source distribution
of llama-cpp-python. Prints the directory; does nothing else when the files are there and their SHA-256 is right.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from fetching import CACHE, FetchError, pip_download, run, sha256

PACKAGE = "llama-cpp-python==0.3.36"
MEMBERS = "/vendor/llama.cpp/models/ggml-vocab-"
SHA256 = "c2e9362a9d9fc6932d30970047cdb7900668c9a4179fc57e3ec23ffed37f12a7"  # of all files in the order of their names
TARGET = CACHE / "vocabularies"


def digest(directory: Path) -> str:
    """SHA-256 of the files of a directory."""
    return sha256(*sorted(directory.iterdir())) if directory.is_dir() else ""


def extract(archive: Path, directory: Path) -> None:
    """Write the vocabularies into `directory`, by their bare names."""
    with tarfile.open(archive) as source:
        for member in source:
            if MEMBERS in member.name and member.isfile() and (data := source.extractfile(member)):
                (directory / Path(member.name).name).write_bytes(data.read())


def fetch() -> Path:
    """The directory of vocabularies, fetched if it is not there or not whole; raises FetchError."""
    if digest(TARGET) == SHA256:
        return TARGET
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        print(f"fetching {PACKAGE} (77 MB) ...", file=sys.stderr)
        # pip asks a source distribution for its name and version, which takes the build tools but builds nothing.
        options = ("--no-binary", "llama-cpp-python", "--no-build-isolation")
        archive = pip_download(PACKAGE, Path(scratch), *options)
        files = Path(scratch) / "files"
        files.mkdir()
        try:
            extract(archive, files)
        except tarfile.TarError as error:
            raise FetchError(f"{archive.name}: {error}") from error
        if (found := digest(files)) != SHA256:
            raise FetchError(f"the vocabularies in {PACKAGE} have SHA-256 {found}, expected {SHA256}")
        if TARGET.exists():
            TARGET.rename(Path(scratch) / "old")
        files.rename(TARGET)
    return TARGET


if __name__ == "__main__":
    run("fetch_vocabularies", fetch)
