"""Log lines go to stderr, so that stdout carries results alone."""

import json
import logging
import sys
import time

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


def use_json() -> None:
    """From now on one JSON object a line: time, level, logger, message, and the fields that a line carries."""
    for handler in logging.getLogger("strata").handlers:
        handler.setFormatter(_JsonFormatter())


def tell(message: str, level: int = logging.INFO) -> None:
    """What is said whatever the log's level: a line of its own, or an object where the log is JSON."""
    root = logging.getLogger("strata")
    for handler in root.handlers:
        if isinstance(handler.formatter, _JsonFormatter):
            handler.handle(root.makeRecord("strata", level, "", 0, message, (), None))
            return
    sys.stderr.write(f"strata: {message}\n")


def adopt(name: str) -> None:
    """Lines of a library's logger go where ours go."""
    theirs = logging.getLogger(name)
    theirs.handlers, theirs.propagate = logging.getLogger("strata").handlers, False


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
