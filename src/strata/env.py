"""The only reader of the process environment.

Every variable is STRATA_ and an upper-case key: each setting of `strata.config`, and two that are no setting of how a
model is run: STRATA_LOG, which must be known before settings are, and STRATA_KERNEL_CACHE.
"""

import os

PREFIX = "STRATA_"
APART = (PREFIX + "LOG", PREFIX + "KERNEL_CACHE")  # variables without a setting


def settings() -> dict[str, str]:
    """All STRATA_ variables that are set and not empty."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and value}


def log_level() -> str:
    """STRATA_LOG: debug, info, warning (the default) or error, in lower case."""
    return os.environ.get(PREFIX + "LOG", "").lower() or "warning"


def kernel_cache() -> str:
    """STRATA_KERNEL_CACHE: the folder of compiled GPU kernels; empty: the user's cache directory."""
    return os.environ.get(PREFIX + "KERNEL_CACHE", "")


def is_set(name: str) -> bool:
    """Whether a variable of another program's protocol is there, such as a shell's that asks for completions."""
    return bool(os.environ.get(name))
