"""Runs a load: a thread a stream, each with a connection of its own."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import perf_counter, sleep

from strata.bench.serve.client import Sample, Target
from strata.bench.serve.workload import Load, PromptMaker

MOST_THREADS = 4096


@dataclass
class _Run:
    target: Target
    model: str
    load: Load
    prompts: PromptMaker
    tell: Callable[[str], None]
    samples: list[Sample] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self, number: int) -> None:
        load = self.load
        prompt = self.prompts.text(f"{load.seed} {number}", load.prompt_len)
        sample = self.target.ask(self.target.body(self.model, prompt, load.output_len, load.fields))
        with self.lock:
            self.samples.append(sample)
            if sample.error:
                self.tell(f"request {number + 1}: {sample.error}")


def run_load(
    target: Target, model: str, load: Load, prompts: PromptMaker, tell: Callable[[str], None] = lambda _: None
) -> list[Sample]:
    """Sends all requests and waits for all answers; samples in the order in which they were sent. `tell` gets a line a
    failure."""
    run = _Run(target, model, load, prompts, tell)
    begun = perf_counter()
    threads = _streams(run, begun) if load.arrival == "together" else _timed(run, begun)
    for thread in threads:
        thread.join()
    return sorted(run.samples, key=lambda sample: sample.begun)


def _streams(run: _Run, begun: float) -> list[threading.Thread]:
    """Streams that ask again when they have their answer."""
    load = run.load

    def more(number: int) -> bool:
        return number < load.num_requests if load.num_requests else perf_counter() - begun < load.seconds

    def stream() -> None:
        while more(number := next(run.numbers)):
            run.one(number)

    return [_start(stream) for _ in range(load.concurrency)]


def _timed(run: _Run, begun: float) -> list[threading.Thread]:
    """Requests at their times; where a bound on streams holds one back, it is sent late."""
    room = threading.Semaphore(run.load.concurrency or MOST_THREADS)
    threads = []

    def one(number: int) -> None:
        try:
            run.one(number)
        finally:
            room.release()

    for number, at in enumerate(run.load.arrivals()):
        sleep(max(0.0, begun + at - perf_counter()))
        room.acquire()
        threads.append(_start(partial(one, number)))
    return threads


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
