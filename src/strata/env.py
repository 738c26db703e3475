"""The only reader of the process environment.

Every variable is STRATA_ and an upper-case key: each setting of `strata.config`, and STRATA_LOG, which must
be known before settings are.
"""

import os

PREFIX = "STRATA_"


def settings() -> dict[str, str]:
    """All STRATA_ variables that are set and not empty."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and value}


def log_level() -> str:
    """STRATA_LOG: debug, info, warning (the default) or error, in lower case."""
    return os.environ.get(PREFIX + "LOG", "").lower() or "warning"


def is_set(name: str) -> bool:
    """Whether a variable of another program's protocol is there, such as a shell's that asks for completions."""
    return bool(os.environ.get(name))
