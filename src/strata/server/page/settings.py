"""What the page tells of the settings."""

from collections.abc import Sequence
from typing import Any

from strata import __version__
from strata.config import Settings
from strata.server.service import Service

_PLACES = ("model", "session_dir", "api_key_file")  # paths are nobody's business but the machine's


def settings_of(service: Service, settings: Sequence[Settings]) -> dict[str, Any]:
    """{facts: {name: value}, settings: [{flag, value, help}]}; secrets and paths only as "(set)"."""
    shown = [
        {"flag": option.flag, "value": _value(option.secret, option.name, given), "help": option.help}
        for part in settings
        for option in part.options()
        for given in (getattr(part, option.name),)
    ]
    facts = {
        "Version": __version__,
        "Model": service.model_id,
        "Context": f"{service.max_model_len} tokens",
        "Vocabulary": f"{service.vocab_size} tokens",
    }
    return {"facts": facts, "settings": shown}


def _value(secret: bool, name: str, given: Any) -> str:
    if given == "":
        return "-"
    return "(set)" if secret or name in _PLACES else str(given)
