"""Moments on the device's stream, by events that are used again."""

from typing import Any

from strata.backends.cuda.driver import Driver

_EVENTS = 1024  # a stamp is good until so many later ones have been made; a step makes some tens


class EventStamp:
    """After everything that was started before it."""

    def __init__(self, driver: Driver, event: Any):
        self._driver, self._event = driver, event

    @property
    def passed(self) -> bool:
        """Whether all of that is done."""
        return self._driver.passed(self._event)

    def wait(self) -> None:
        """Until it is."""
        self._driver.wait(self._event)

    def ms_since(self, earlier: "EventStamp") -> float:
        """Milliseconds on the device."""
        return self._driver.elapsed(earlier._event, self._event) * 1e-3


class Clock:
    """Makes stamps."""

    def __init__(self, driver: Driver):
        self._driver = driver
        self._events: list[Any] = []
        self._next = 0

    def stamp(self) -> EventStamp:
        """This moment."""
        if self._next == len(self._events) < _EVENTS:
            self._events.append(self._driver.event(timed=True))
        event = self._events[self._next % _EVENTS]
        self._next = (self._next + 1) % _EVENTS
        self._driver.signal(event)
        return EventStamp(self._driver, event)
