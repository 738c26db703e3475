"""A chat of ten turns that grows to 6K tokens: python -m benchmarks.serving.sessions

Prints each turn's new tokens, those read again, and the time to the first token; the same prompt cold; and the last
turn after a restart, with the time that opening the session directory takes.
"""

import tempfile
import time

from benchmarks.serving.common import arguments, load, median, sampling, text

TURNS = 10


def ask(engine, history, count=40):
    """Seconds to the first token, the request when it has ended."""
    request = engine.add(history, sampling(count))
    begin = time.perf_counter()
    while not request.output_token_ids:
        engine.step()
    first = time.perf_counter() - begin
    while engine.has_work:
        engine.step()
    return first, request


def main():
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        engine = load(args, session_dir=directory)
        history, times = text(1, 5400), []
        for turn in range(TURNS):
            first, request = ask(engine, history)
            read = len(history) - request.num_cached_tokens
            times.append(first)
            print(
                f"  turn {turn}: {len(history)} tokens, {read} read, first token after {first * 1e3:.0f} ms"
            )
            history = history + request.output_token_ids + text(10 + turn, 30)
        engine.close()
        cold, _ = ask(load(args), history)
        begin = time.perf_counter()
        engine = load(args, session_dir=directory)
        opened = time.perf_counter() - begin
        begin = time.perf_counter()
        load(args)
        plain = time.perf_counter() - begin
        first, request = ask(engine, history)
        read = len(history) - request.num_cached_tokens
        second, _ = ask(engine, history + request.output_token_ids + text(30, 30))
        engine.close()
    warm = median(times[1:])
    print(
        f"{len(history)} tokens cold: {cold * 1e3:.0f} ms; follow-ups {warm * 1e3:.0f} ms, {cold / warm:.0f}x sooner"
    )
    print(
        f"after a restart: {read} tokens read, {first * 1e3:.0f} ms, {cold / first:.0f}x sooner; "
        f"the next {second * 1e3:.0f} ms"
    )
    print(f"loading with the session directory {opened * 1e3:.0f} ms, without {plain * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
