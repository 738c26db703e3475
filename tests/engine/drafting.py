"""Engines that draft by force: what is decided by gain in earnest is decided here by the test."""

from recorded import Recorded


class Always:
    """Verifies everything that is proposed, and asks the layer for `count` drafts after every step."""

    def __init__(self, count=7):
        self.count = count

    def choose(self, reaches, passes=None):
        return [min(len(r), self.count) for r in reaches]

    def keep(self, reaches, passes):
        return self.choose(reaches)

    def saw_plain(self, sequences, ms):
        pass

    def saw_drafted(self, sequences, rows, ms, chain, chain_ms, tokens):
        pass


class Capped(Always):
    """Never more rows than a step holds."""

    def choose(self, reaches, passes=None):
        room = 32 // max(len(reaches), 1) - 1
        return [min(len(r), self.count, room) for r in reaches]


def drafting(path, serving=None, count=7, tamper=None, **options):
    """A recorded engine whose speculation is forced; `tamper(request, drafts)` changes what is verified."""
    e = Recorded(path, serving, **options)
    e.drafts = e.engine.scheduler.drafts
    e.drafts.decision, e.drafts.tamper = Capped(count), tamper
    return e


def wrong_at(place):
    """Replaces the draft at one place by another token."""

    def tamper(request, drafts):
        return [d if i != place else (d + 1) % 100 for i, d in enumerate(drafts)]

    return tamper
