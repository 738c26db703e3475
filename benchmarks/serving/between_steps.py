"""Python between replays of a decode step: python -m benchmarks.serving.between_steps

Time of steps less the time inside the two replays, by rows.
"""

import time

from benchmarks.serving.common import arguments, load, median, started, text


class Timed:
    """A replay that counts its seconds."""

    def __init__(self, replay):
        self.replay, self.seconds = replay, 0.0

    def __getattr__(self, name):
        """Its calls, timed."""

        def timed(*arguments):
            begin = time.perf_counter()
            found = getattr(self.replay, name)(*arguments)
            self.seconds += time.perf_counter() - begin
            return found

        return timed


def main():
    args = arguments(__doc__)
    engine = load(args, parallel=32)
    programs = engine._runner.programs
    programs.sampler = sampler = Timed(programs.sampler)
    for rows in (1, 8, 32):
        requests = [started(engine, text(i, 20), 4000) for i in range(rows)]
        forward = Timed(programs.step_of[rows].replay)
        object.__setattr__(programs.step_of[rows], "replay", forward)
        between = []
        for _ in range(120):
            forward.seconds = sampler.seconds = 0.0
            begin = time.perf_counter()
            engine.step()
            between.append((time.perf_counter() - begin - forward.seconds - sampler.seconds) * 1e6)
        object.__setattr__(programs.step_of[rows], "replay", forward.replay)
        for request in requests:
            engine.abort(request)
        print(f"{rows} rows: {median(between):.0f} us of Python a step, p99 {sorted(between)[-2]:.0f}")


if __name__ == "__main__":
    main()
