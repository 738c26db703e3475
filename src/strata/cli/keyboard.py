"""What is typed: lines from a terminal or a pipe, and Ctrl-C while an answer comes."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from strata.cli.inputs import decode
from strata.errors import UsageError


def typed_at_terminal() -> bool:
    """Whether somebody sits there."""
    return sys.stdin is not None and sys.stdin.isatty()


def lines() -> Iterator[str]:
    """Lines until the end of standard input (Ctrl-D), without line breaks; from a terminal, with editing."""
    if sys.stdin is None:  # closed before the start
        raise UsageError("chat reads from standard input, which is closed")
    yield from _typed() if typed_at_terminal() else _piped()


def _piped() -> Iterator[str]:
    for raw in sys.stdin.buffer:
        yield decode(raw, "the line").rstrip("\r\n")


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):  # some builds of Python are without
        import readline  # noqa: F401  (imported, it edits the lines of `input`)
    while True:
        try:
            line = _ask()
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:  # drops the line, not the session
            print(file=sys.stderr)
            continue
        yield line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _ask() -> str:
    if sys.stdout.isatty():
        return input("> ")
    print("> ", end="", file=sys.stderr, flush=True)  # stdout is for the answers
    return input()


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C only makes the function given true: a step is never cut in its middle. A second one raises."""
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a job in the background is not to be interrupted
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
