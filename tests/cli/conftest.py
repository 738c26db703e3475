"""Running the command line as a user would, without starting a process each time."""

import io
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from strata.cli import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Stdin:
    """Standard input that holds given bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        """Nobody types."""
        return False


@pytest.fixture
def strata(capsys, monkeypatch) -> Callable[..., Done]:
    """`strata("run", ..., stdin=b"...")`: exit code, stdout, stderr."""
    for name in [name for name in os.environ if name.startswith("STRATA_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", Stdin(stdin))
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        return Done(int(stopped.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def refused(strata) -> Callable[..., str]:
    """Like `strata`, for commands that must fail: checks the one line, and returns it without its beginning."""

    def run(*arguments: object, stdin: bytes = b"", code: int | None = None) -> str:
        done = strata(*arguments, stdin=stdin)
        assert done.code == code if code is not None else done.code != 0
        assert done.out == ""
        assert done.err.startswith("strata: error: ")
        assert done.err.count("\n") == 1
        assert done.err.endswith("\n")
        assert "Traceback" not in done.err
        assert "error: unexpected" not in done.err
        return done.err.removeprefix("strata: error: ").strip()

    return run
