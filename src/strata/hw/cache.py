"""Where measurements and what was learned are kept between runs."""

from pathlib import Path


def cache_directory() -> Path:
    """The user's cache directory of this program; need not exist yet."""
    return Path("~/.cache/strata").expanduser()
