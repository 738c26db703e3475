"""A scheduler's memory that counts, for tests without a model or a device."""


class Memory:
    """Pages by count; a preempted request starts again from nothing."""

    def __init__(self, pages=1000, sequences=8):
        self.free, self.places, self.held = pages, list(range(sequences)), {}
        self.preempted = 0

    def awaits(self, request):
        return False

    def start(self, request):
        if not self.places or not self._take(request, request.num_tokens + 1):
            return False
        request.sequence = self.places.pop(0)
        request.num_computed_tokens = max(request.num_tokens - 1, 0) if request.output_token_ids else 0
        return True

    def _take(self, request, cells):
        missing = -(-cells // 64) - self.held.get(request, 0)
        if missing > self.free:
            return False
        self.free -= max(missing, 0)
        self.held[request] = self.held.get(request, 0) + max(missing, 0)
        return True

    def grow(self, request, cells):
        return self._take(request, cells)

    def taps(self, request, begin, end):
        return ()

    def computed(self, request):
        pass

    def park(self, request, void):
        self.preempted += 1
        self.end(request, void)
        if not request.output_token_ids:
            request.num_computed_tokens = 0

    def end(self, request, void):
        if request.sequence >= 0:
            self.free += self.held.pop(request)
            self.places = sorted([*self.places, request.sequence])
            request.sequence = -1
