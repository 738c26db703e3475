"""Log lines go to stderr, so that stdout carries results alone."""

import logging

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def logger(name: str) -> logging.Logger:
    """Logger of one part, for example `logger(__name__)`."""
    return logging.getLogger(name)


def setup(level: str) -> None:
    """Send every part's lines at `level` (a key of LEVELS) and above to stderr."""
    root = logging.getLogger("strata")
    root.handlers.clear()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("strata: %(levelname)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    root.propagate = False
