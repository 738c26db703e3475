"""The host's side of drafts: what is proposed for each sequence, how much of it is verified, what is learned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from strata.engine.drafts.acceptance import Acceptance
from strata.engine.drafts.counts import DraftCounts
from strata.engine.drafts.decision import Decision
from strata.engine.drafts.report import Teller
from strata.engine.drafts.topics import Misses, TopicMisses
from strata.engine.drafts.track import Fares, Proposal, Track
from strata.engine.plan import Chain, DecodeRows, StepOutput
from strata.engine.request import Request
from strata.ops import MAX_DRAFTS, MAX_STEP_ROWS

Grow = Callable[[Request, int], bool]  # makes a sequence hold so many cells, where there is room


@dataclass(frozen=True)
class DraftOptions:
    """`spec`: most drafts at once for a sequence; `min_p`: the layer's probability below which a chain ends;
    `step_rows`: most rows of a step with drafts."""

    layer: bool
    lookup: bool
    spec: int = MAX_DRAFTS
    min_p: float = 0.0
    step_rows: int = MAX_STEP_ROWS


@dataclass(frozen=True)
class _Owed:
    """A drafted step whose chains are on their way: what it took without them, and since when nothing but they did."""

    requests: tuple[Request, ...]
    wait: Callable[[], dict[int, Chain]] | None
    sequences: int
    rows: int
    ms: float
    extra_ms: float
    chain_ms: float
    tokens: int
    since: float
    timed: bool


class Decider(Protocol):
    """What decides; tests put others in its place."""

    def choose(self, reaches: Sequence[Sequence[float]], passes: int | None = None) -> list[int]:
        """Drafts to make for the next step, or, with `passes`, to verify of drafts that cost no more."""

    def keep(self, reaches: Sequence[Sequence[float]], passes: int) -> list[int]:
        """Drafts to verify of chains that were made."""

    def saw_plain(self, sequences: int, ms: float) -> None:
        """A step without drafts and chains."""

    def saw_drafted(
        self,
        sequences: int,
        rows: int,
        ms: float,
        chain: int,
        chain_ms: float,
        tokens: int,
        extra_ms: float = 0.0,
    ) -> None:
        """A step with either; `extra_ms`: that it took besides, and steps of so many rows do not as a rule."""


class Speculation:
    """Of a scheduler. Each step: `rows`, then `update`. Which drafts there are never changes what is generated."""

    def __init__(
        self,
        options: DraftOptions,
        script: Callable[[int], str] = lambda token: "all",
        reduced: bool = False,  # whether the draft vocabulary lacks tokens
    ):
        self.options, self.counts, self._script = options, DraftCounts(), script
        self._teller = Teller(options.spec, reduced)
        self.decision: Decider = Decision(most_rows=options.step_rows)
        self.clock = perf_counter
        self.tamper: Callable[[Request, list[int]], list[int]] | None = None  # tests: other drafts
        self.ahead: Callable[[], bool] = lambda: False  # whether the next step is running already,
        self.verifying: Callable[[], bool] = lambda: False  # with all drafts of the chains at hand
        self.misses: Misses | None = None  # None: all experts are where they compute
        self._missed, self._topics = -1, TopicMisses()  # by the end of the step before
        self._fares = Fares()
        self._tracks: dict[Request, Track] = {}
        self._ended_at: float | None = None  # of the step before, where it was one of decoding alone
        self._chain = 0  # passes that made the chains at hand
        self._owed: _Owed | None = None
        self._chained: tuple[Request, ...] = ()  # of the drafted step before

    def rows(self, plain: DecodeRows, requests: Sequence[Request], grow: Grow) -> DecodeRows:
        """The step's rows with drafts among them, and what the draft layer is to propose after it."""
        n = len(requests)
        if self._owed is not None:
            self._settle(self._owed)
        if self.misses is not None and self._missed < 0:
            self._missed = self.misses.count()
        if not 0 < n < MAX_STEP_ROWS:
            return plain
        tracks = [self._track(r) for r in requests]
        left = [_left(r) for r in requests]
        spec, min_p = self.options.spec, self.options.min_p
        offers: list[Proposal | None]
        verifying = self.verifying() and tuple(requests) == self._chained  # else that step is dropped
        if verifying:
            offers = [t.from_chain(min(n, spec), 0.0) for t, n in zip(tracks, left, strict=True)]
            counts = [0 if o is None else len(o.token_ids) for o in offers]
        else:
            offers = [t.proposal(min(n, spec), self._fares, min_p) for t, n in zip(tracks, left, strict=True)]
            counts = self._counts(offers)
        chains = self._chains(tracks, left, offers)
        if self.ahead() and not self.verifying():  # what runs is taken first, and nothing is started after it
            held = plain.hold or any(counts) or any(chains)
            return DecodeRows(plain.sequences, plain.positions, plain.token_ids, hold=held)
        if not any(counts) and not any(chains):
            return plain
        follow = self.tamper is None and not min_p and not plain.hold
        for i, request in enumerate(requests):
            cells = int(plain.positions[i]) + 2 + counts[i] + chains[i]
            follow &= counts[i] + chains[i] < left[i]  # so that all drafts that are made can be verified
            if (counts[i] or chains[i]) and not grow(request, cells):
                counts[i] = chains[i] = 0
        verified = [o.cut(c) if o is not None and c else None for o, c in zip(offers, counts, strict=True)]
        return replace(
            self._drafted(plain, requests, tracks, verified, chains), follow=follow and any(chains)
        )

    def _settle(self, owed: "_Owed") -> None:
        """Waits for the chains of the step before, and tells what it took with them."""
        self._owed = None
        chains = {} if owed.wait is None else owed.wait()
        for request in owed.requests:
            if request in self._tracks:
                self._tracks[request].chain = chains.get(request.sequence)
        now = self.clock()
        if self._ended_at is not None:
            self._ended_at = now
        if owed.timed:
            chain_ms = owed.chain_ms + (now - owed.since) * 1e3 if self._chain else 0.0
            self.decision.saw_drafted(
                owed.sequences, owed.rows, owed.ms, self._chain, chain_ms, owed.tokens, owed.extra_ms
            )

    def _counts(self, offers: Sequence[Proposal | None]) -> list[int]:
        """Drafts to verify of what is offered."""
        reaches = [() if o is None else o.reach for o in offers]
        if not any(reaches):
            return [0] * len(offers)
        if any(o is not None and o.drafter == "layer" for o in offers):
            return self.decision.keep(reaches, self._chain)
        return self.decision.choose(reaches, 0)

    def _chains(
        self, tracks: Sequence[Track], left: Sequence[int], offers: Sequence[Proposal | None]
    ) -> list[int]:
        """Drafts that the layer is to make after this step; its tokens leave less to draft."""
        if not self.options.layer:
            return [0] * len(tracks)
        most = [min(max(n - 1, 0), self.options.spec) for n in left]
        reaches = [t.layer_reach(m, o) for t, m, o in zip(tracks, most, offers, strict=True)]
        return self.decision.choose(reaches)

    def _drafted(
        self,
        plain: DecodeRows,
        requests: Sequence[Request],
        tracks: Sequence[Track],
        verified: Sequence[Proposal | None],
        chains: list[int],
    ) -> DecodeRows:
        tokens: list[int] = []
        counts = []
        for i, (request, track, proposal) in enumerate(zip(requests, tracks, verified, strict=True)):
            drafts = [] if proposal is None else proposal.token_ids
            if self.tamper is not None and drafts:
                drafts = self.tamper(request, drafts)
            track.verified = proposal
            tokens += [int(plain.token_ids[i]), *drafts]
            counts.append(1 + len(drafts))
        per = np.array(counts, np.int32)
        inside = np.arange(len(tokens), dtype=np.int32) - np.repeat(np.cumsum(per) - per, per).astype(
            np.int32
        )
        return DecodeRows(
            np.repeat(plain.sequences, per),
            np.repeat(plain.positions, per) + inside,
            np.array(tokens, np.int32),
            per,
            np.array(chains, np.int32),
            hold=True,
        )

    def update(self, output: StepOutput, requests: Sequence[Request]) -> None:
        """Takes in a step, before its tokens are the requests'."""
        if self._owed is not None:
            self._settle(self._owed)
        decode, now = output.plan.decode, self.clock()
        began, self._ended_at = self._ended_at, now
        n, took = len(requests), output.decode_ms + output.draft_ms
        if output.plan.tails or output.plan.reading or output.plan.prompt is not None or output.faults:
            self._ended_at = None
        elif began is not None:
            took = max((now - began) * 1e3, 0.0)
        missed = 0 if self.misses is None else self._missed_lately(self.misses)
        if decode.counts is None:
            if n and began is not None and self._ended_at is not None:
                self.decision.saw_plain(n, self._without_topics(took, missed, n) if missed else took)
            self._count_step(n, n, False)
            if self._chain:
                self._forget_chains(requests)
            return
        accepted = output.accepted if output.accepted is not None else np.ones(n, np.int32)
        self._learn(output, requests, accepted)
        self._chain = int(decode.chains.max()) if decode.chains is not None else 0
        timed = self._ended_at is not None and began is not None
        chain_ms = output.draft_ms if self._chain else 0.0
        rows, tokens = len(decode.sequences), int(accepted.sum())
        transient, paid = 0.0, 0.0
        if missed and self.misses is not None:
            transient, paid = self._topics.drafted(missed, rows, tokens, self.misses.ms())
        self._chained = tuple(requests)
        ms = took - chain_ms - transient
        self._owed = _Owed(
            self._chained, output.chains, n, rows, ms, transient - paid, chain_ms, tokens, now, timed
        )
        self._count_step(n, tokens, True)

    def _missed_lately(self, misses: Misses) -> int:
        """Experts missed since the end of the step before."""
        before, self._missed = self._missed, misses.count()
        return self._missed - max(before, 0)

    def _without_topics(self, took: float, missed: int, tokens: int) -> float:
        """The time of a plain step."""
        return took if self.misses is None else self._topics.plain(took, missed, tokens, self.misses.ms())

    def _forget_chains(self, requests: Sequence[Request]) -> None:
        """What no step took up is of an earlier place now."""
        self._chain = 0
        for track in map(self._tracks.get, requests):
            if track is not None:
                track.chain = None

    def _count_step(self, sequences: int, tokens: int, drafted: bool) -> None:
        if sequences:
            self.counts.steps += 1
            self.counts.drafted_steps += drafted
            self.counts.tokens += tokens

    def _learn(self, output: StepOutput, requests: Sequence[Request], accepted: "np.ndarray") -> None:
        begin = 0
        for request, count in zip(requests, accepted.tolist(), strict=True):
            track = self._track(request)
            proposal, track.verified = track.verified, None
            if proposal is not None and request.sequence not in output.faults:
                drafts, right = len(proposal.token_ids), count - 1
                ended = right < drafts and output.cut.get(request.sequence, False)
                if not ended:  # a stop says nothing about the drafts after it
                    self._observe(track, proposal, drafts, right)
                script = self._script(int(output.token_ids[begin]))
                self.counts.window(proposal.drafter, drafts, right, script)
            begin += count
        self._teller.tell(self.counts)

    def _observe(self, track: Track, proposal: Proposal, drafts: int, right: int) -> None:
        self._fares.of(proposal.drafter, proposal.agreed).observe(drafts, right)
        if proposal.drafter == "layer":
            track.layer.observe(drafts, right)

    def _track(self, request: Request) -> Track:
        track = self._tracks.get(request)
        if track is None:
            track = self._tracks[request] = Track(request, self.options.lookup, self._begin)
        return track

    @property
    def _begin(self) -> Acceptance:
        return self._fares.layer

    def leave(self, request: Request) -> None:
        """The request decodes no more, for good or for a while."""
        self._tracks.pop(request, None)


def _left(request: Request) -> int:
    """Drafts that could become tokens beside the one that comes anyway."""
    return max(request.sampling.max_tokens - len(request.output_token_ids) - 1, 0)
