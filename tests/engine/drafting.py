"""Engines that draft by force: what is decided by gain in earnest is decided here by the test."""

from recorded import Recorded

from strata.engine.drafts.track import Proposal, Track


class Always:
    """Verifies all that is proposed, as far as a step has rows, and asks for `count` drafts after every step."""

    def __init__(self, count=7):
        self.count = count

    def choose(self, reaches, passes=None):
        room = 32 // max(len(reaches), 1) - 1
        return [min(len(r), self.count, room) for r in reaches]

    def keep(self, reaches, passes):
        return self.choose(reaches)

    def saw_plain(self, sequences, ms):
        pass

    def saw_drafted(self, sequences, rows, ms, chain, chain_ms, tokens, extra_ms=0.0):
        pass


def drafting(path, serving=None, count=7, tamper=None, **options):
    """A recorded engine whose speculation is forced; `tamper(request, drafts)` changes what is verified."""
    e = Recorded(path, serving, **options)
    e.drafts = e.engine.scheduler.drafts
    e.drafts.decision, e.drafts.tamper = Always(count), tamper
    return e


def wrong_at(place):
    """Replaces the draft at one place by another token."""

    def tamper(request, drafts):
        return [d if i != place else (d + 1) % 100 for i, d in enumerate(drafts)]

    return tamper


def foretold(monkeypatch, texts, wrong_place=None, most=7):
    """Every sequence is proposed what it will say, by prompt in `texts`; at one place, if named, a wrong token."""

    def proposal(track, left, fares, min_p):
        request = track._request
        done, count = len(request.output_token_ids), min(left, most)
        drafts = list(texts[tuple(request.prompt_token_ids)][done : done + count])
        if wrong_place is not None and wrong_place < len(drafts):
            drafts[wrong_place] = (drafts[wrong_place] + 1) % 100
        return Proposal("lookup", drafts, [1.0] * len(drafts)) if drafts else None

    monkeypatch.setattr(Track, "proposal", proposal)
