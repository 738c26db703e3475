"""Functions that run compiled where a trainer asks for it: small ones of flat rows, so that one graph serves all layers
and all lengths of text."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P, R = ParamSpec("P"), TypeVar("R")
_state = {"on": False}


def enable(on: bool) -> bool:
    """From now on; returns what it was."""
    torch._dynamo.config.recompile_limit = 64
    before, _state["on"] = _state["on"], on
    return before


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled while `enable` says so."""
    fast = torch.compile(function, dynamic=False)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (fast if _state["on"] else function)(*args, **kwargs)

    return call
