"""The host's side of the prompt cursor: which prompt is read, how far it is, and how long it may run in a step."""

from math import inf

from strata.engine.fairness import PromptOrder
from strata.engine.pieces import Cutter
from strata.engine.plan import PromptCursor, ScheduledRows, StepOutput
from strata.engine.request import Request
from strata.ops import CHUNK_BLOCK

ALONE_MS = 50.0  # a step's budget when nobody decodes: how soon a step ends for what has come meanwhile
MOST_CREDIT_MS = 100.0  # what a prompt may save up, and overdraw, before decoding goes on
GAP_MS = 70.0  # a step's rows with the parts before them, where these are several
SLOW_FOR = 0.97  # what a slow step or part leaves of itself in the next one's bound: topics change again
PART_STEPS = 3.0  # a part may last as long as so many decode steps, and no longer than they leave of the gap,
PART_MS = 25.0  # but so long it may, where steps are short or slow: small chunks read slowly


class PromptReader:
    """Reads one chunk at a time. While others decode, it spends `share` of the time: each step earns a budget by the
    time its rows took, and what a part took beyond the budget is owed. Parts of a step and the rows after them stay
    within a gap, which may cost the prompt some of its share."""

    def __init__(self, cutter: Cutter, share: float, order: PromptOrder):
        self._cutter, self._share, self._order = cutter, share, order
        self.request: Request | None = None  # whose chunk is being read
        self._rows: ScheduledRows | None = None
        self._taps: tuple[tuple[int, int], ...] = ()
        self._part = 0
        self._ending = False  # whether all layers of the chunk are started
        self._credit_ms = 0.0
        self._row_ms = 0.0  # of one row in one part, lately
        self._slow_row_ms = 0.0  # the same of the slowest
        self._step_ms = 0.0  # of the decode rows, lately
        self._slow_ms = 0.0  # of the slowest of late

    @property
    def busy(self) -> bool:
        """Whether a chunk is begun."""
        return self._rows is not None

    def chunk_rows(self, request: Request, decoding: bool) -> int:
        """Rows of the next chunk of a request; 0 when its next tokens take the step form."""
        begin = request.num_computed_tokens
        piece = self._cutter.cut(begin, request.num_tokens - begin)
        if piece.form != "chunk":
            return 0
        if not decoding or not self._row_ms:
            return piece.count
        longest = max(min(PART_STEPS * self._step_ms, self._room_ms), PART_MS)
        most = int(longest / self._row_ms) // CHUNK_BLOCK * CHUNK_BLOCK
        return min(piece.count, max(most, CHUNK_BLOCK))

    @property
    def _room_ms(self) -> float:
        """What decode rows leave of a gap where they are slow."""
        return max(GAP_MS - self._slow_ms, 0.0)

    def begin(self, request: Request, rows: ScheduledRows, taps: tuple[tuple[int, int], ...]) -> None:
        """Takes up a chunk, whose pages are there."""
        self.request, self._rows, self._taps, self._part, self._ending = request, rows, taps, 0, False

    def cursor(self, decoding: bool) -> PromptCursor | None:
        """What the next step reads; None where nothing is begun or its budget is spent."""
        if not decoding:
            self._credit_ms = 0.0
        if self._rows is None or (decoding and self._credit_ms <= 0 and not self._ending):
            return None
        budget, most = ALONE_MS, inf
        if decoding:  # a chunk's first part may wait for its experts: it is started alone
            budget, most = self._credit_ms, self._room_ms if self._part else 0.0
            most -= (self._slow_row_ms - self._row_ms) * len(self._rows.token_ids)
        part_ms = self._row_ms * len(self._rows.token_ids)
        return PromptCursor(self._rows, self._part, budget, self._taps, part_ms, most)

    def update(self, output: StepOutput) -> ScheduledRows | None:
        """Takes in a step; returns the chunk when it is complete."""
        decoding = len(output.plan.decode) > 0
        if decoding:
            earned = output.decode_ms * self._share / (1 - self._share)
            self._slow_ms = max(output.decode_ms, SLOW_FOR * self._slow_ms)
            self._step_ms += (output.decode_ms - self._step_ms) * (0.2 if self._step_ms else 1.0)
            most = MOST_CREDIT_MS if self.busy else earned
            self._credit_ms = min(self._credit_ms + earned - output.prompt_ms, most)
        cursor = output.plan.prompt
        if cursor is None or cursor.rows is not self._rows:
            return None
        self._learn(cursor, output)
        if output.prompt_waits:
            return None
        self._part = output.prompt_part
        self._ending = 0 < output.prompt_parts <= self._part
        if self.request is not None:
            share = self._part / output.prompt_parts if output.prompt_parts else 0.0
            self.request.chunk_read = share * len(cursor.rows.token_ids)
        if self._part:
            return None
        rows, self._rows, self.request = self._rows, None, None
        return rows

    def _learn(self, cursor: PromptCursor, output: StepOutput) -> None:
        if output.part_ms:
            row_ms = output.part_ms / len(cursor.rows.token_ids)
            self._slow_row_ms = max(row_ms, SLOW_FOR * self._slow_row_ms)
            self._row_ms += (row_ms - self._row_ms) * (0.2 if self._row_ms else 1.0)

    def drop(self, request: Request) -> bool:
        """Gives up the chunk of a request; whether one was begun, so that its state is void."""
        if self.request is not request:
            return False
        self.request = self._rows = None
        request.chunk_read = 0.0
        return True

    def pick(self, prompts: list[Request]) -> Request:
        """Whose chunk comes next."""
        return self._order.pick(prompts)
