"""Guard against answers that say the same again and again."""

MAX_PERIOD = 256  # tokens


class RepetitionGuard:
    """True from `push` once the last `limit` tokens are one stretch of at most MAX_PERIOD tokens, over and over.

    For each period p it is enough to count how many of the latest tokens equal the one p before: a run of `limit`
    means limit / p repetitions. Costs a few hundred comparisons a token only where the latest token was seen before.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._tokens: list[int] = []
        self._runs: dict[int, int] = {}  # by period: latest tokens that equal the one a period before

    def push(self, token_id: int) -> bool:
        """Takes a token in."""
        tokens = self._tokens
        nearest = range(1, min(MAX_PERIOD, self.limit // 4, len(tokens)) + 1)
        self._runs = {p: self._runs.get(p, 0) + 1 for p in nearest if tokens[-p] == token_id}
        tokens.append(token_id)
        if len(tokens) > 2 * MAX_PERIOD:
            del tokens[:MAX_PERIOD]
        return any(run >= self.limit for run in self._runs.values())
