"""strata.toml: each key is a setting of `strata.config`; an unknown one is an error that names the nearest."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.config import SETTINGS
from strata.errors import UsageError

# Keys of other engines of this kind that recipes carry. They are taken and have no effect on a CPU.
WITHOUT_EFFECT = {
    "model.quant": "the file says how it is quantised",
    "gpu.tensor_parallel": "one GPU at most computes",
    "infer.flash_attn": "attention never stores its scores",
    "infer.max_batch_tokens": "infer.prefill sets how many prompt tokens are read at a time",
}


def read_config(path: Path) -> dict[str, Any]:
    """Values by `section.key`; UsageError in one line for what is missing, malformed or unknown."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    values = {}
    for section, keys in content.items():
        if not isinstance(keys, dict):
            raise UsageError(f"{path}: {section} stands outside any section" + _near(section))
        values.update({f"{section}.{key}": value for key, value in keys.items()})
    for key in values:
        if key not in known_keys() and key not in WITHOUT_EFFECT:
            raise UsageError(f"{path}: {key} is no setting" + _near(key))
    return values


def check_conflicts(flags: Mapping[str, Any], path: Path, values: Mapping[str, Any]) -> None:
    """UsageError where a flag names what the file switches off: neither may win silently."""
    named = flags.get("mtp")
    if named not in (None, "on", "off", "auto") and values.get("drafts.mtp") in (False, "off"):
        raise UsageError(
            f"{path} says drafts.mtp = false and --mtp names {named}: take one of them away; which is meant cannot "
            "be known"
        )


def known_keys() -> dict[str, str]:
    """Settings' names by their key in a file."""
    return {option.toml: option.name for cls in SETTINGS for option in cls.options()}


def _near(key: str) -> str:
    names = [*known_keys(), *WITHOUT_EFFECT]
    last = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(key, names, 1)
    near = near or [last[n] for n in difflib.get_close_matches(key.rpartition(".")[2], list(last), 1)]
    return f" (did you mean {near[0]}?)" if near else ""
