"""Fetch the vocabularies of well-known tokenizers with texts and the ids they must become (76 MB), and the chat
templates of well-known models (0.4 MB), for the tests.

They are llama.cpp's own test data, `ggml-vocab-NAME.gguf` with `.inp` and `.out`, and `NAME.jinja`, and ship in the
source distribution of llama-cpp-python. Prints the directory of vocabularies, beside which the one of templates lies;
does nothing else when the files are there and their SHA-256 is right.
"""

import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fetching import CACHE, FetchError, pip_download, run, sha256

PACKAGE = "llama-cpp-python==0.3.36"


@dataclass(frozen=True)
class Folder:
    """Files of the archive whose path contains `members`."""

    name: str
    members: str
    sha256: str  # of all files in the order of their names


FOLDERS = (
    Folder(
        "vocabularies",
        "/vendor/llama.cpp/models/ggml-vocab-",
        "c2e9362a9d9fc6932d30970047cdb7900668c9a4179fc57e3ec23ffed37f12a7",
    ),
    Folder(
        "templates",
        "/vendor/llama.cpp/models/templates/",
        "f5659b87a030a23332b126c1ad5bafcfaf72d959b17aff67bd351b92f799c0f9",
    ),
)


def digest(directory: Path) -> str:
    """SHA-256 of the files of a directory."""
    return sha256(*sorted(directory.iterdir())) if directory.is_dir() else ""


def extract(archive: Path, directory: Path) -> None:
    """Write each folder's files into a directory of its name, by their bare names."""
    for folder in FOLDERS:
        (directory / folder.name).mkdir()
    with tarfile.open(archive) as source:
        for member in source:
            for folder in FOLDERS:
                if folder.members in member.name and member.isfile() and (data := source.extractfile(member)):
                    (directory / folder.name / Path(member.name).name).write_bytes(data.read())


def fetch() -> Path:
    """The directory of vocabularies, fetched if a folder is not there or not whole; raises FetchError."""
    if any(digest(CACHE / folder.name) != folder.sha256 for folder in FOLDERS):
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            _fetch_into_cache(Path(scratch))
    return CACHE / FOLDERS[0].name


def _fetch_into_cache(scratch: Path) -> None:
    print(f"fetching {PACKAGE} (77 MB) ...", file=sys.stderr)
    # pip asks a source distribution for its name and version, which takes the build tools but builds nothing.
    options = ("--no-binary", "llama-cpp-python", "--no-build-isolation")
    archive = pip_download(PACKAGE, scratch, *options)
    files = scratch / "files"
    files.mkdir()
    try:
        extract(archive, files)
    except tarfile.TarError as error:
        raise FetchError(f"{archive.name}: {error}") from error
    for folder in FOLDERS:
        if (found := digest(files / folder.name)) != folder.sha256:
            raise FetchError(f"the {folder.name} in {PACKAGE} have SHA-256 {found}, expected {folder.sha256}")
        target = CACHE / folder.name
        if target.exists():
            target.rename(scratch / f"old-{folder.name}")
        (files / folder.name).rename(target)


if __name__ == "__main__":
    run("fetch_vocabularies", fetch)
