"""Watches the engine thread: a step that does not end must not hold every client for ever."""

import asyncio
import logging
import time

from strata.server.engine_thread import EngineThread

log = logging.getLogger(__name__)


async def watch(engine: EngineThread, seconds: float) -> None:
    """Runs until cancelled. A step older than `seconds` fails the open requests and turns new ones away, and /health
    says so; when it ends after all, requests are taken again."""
    stuck = False
    while True:
        await asyncio.sleep(min(seconds / 4, 1.0))
        began = engine.step_began
        late = began is not None and time.monotonic() - began > seconds
        if late != stuck:
            stuck = late
            engine.set_stuck(stuck)
            if stuck:
                log.error("a step has run for over %g s; open requests are ended", seconds)
            else:
                log.warning("the step has ended; requests are taken again")
