"""How requests share an engine: python -m benchmarks.serving.sharing

Prints: an answer's speed while a 4K prompt is read, against its speed alone; eight clients together against one; an
unused --parallel 16 against --parallel 1; thirty clients' longest wait against the mean; an answer's speed when the
others have left.
"""

import time

from benchmarks.serving.common import arguments, finish, load, median, rate, sampling, started, text


def while_a_prompt_is_read(args, tokens=240):
    """The same answer alone and beside a prompt, for as many tokens as fit into the reading of one."""
    engine = load(args, parallel=4)
    shares, gaps, reads = [], [], []
    for round_ in range(args.rounds):
        alone = steps(engine, started(engine, text(round_, 40), 4000), tokens)
        answer = started(engine, text(round_, 40), 4000)
        prompt, begin = engine.add(text(100 + round_, 4096), sampling(1)), time.perf_counter()
        beside = steps(engine, answer, tokens, keep=True)
        assert not prompt.output_token_ids, "the answer outlasted the prompt"
        while not prompt.output_token_ids:
            engine.step()
        reads.append(time.perf_counter() - begin)
        engine.abort(answer)
        shares.append(sum(alone) / sum(beside))
        gaps.append(max(beside) * 1e3)
        print(f"  alone {tokens / sum(alone):.0f} tok/s, beside a prompt {tokens / sum(beside):.0f}")
    print(
        f"beside a 4K prompt: {median(shares):.0%} of solo speed, longest step {median(gaps):.0f} ms; "
        f"read in {median(reads):.2f} s"
    )


def steps(engine, request, count, keep=False):
    """Seconds of each of the next `count` steps, one token each."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        engine.step()
        found.append(time.perf_counter() - begin)
    if not keep:
        engine.abort(request)
    return found


def together(args):
    engine = load(args, parallel=8)
    for count in (1, 8):
        rates = []
        for round_ in range(args.rounds):
            requests = [started(engine, text(200 + 10 * round_ + i, 40), 200) for i in range(count)]
            done = sum(len(r.output_token_ids) for r in requests)
            seconds = finish(engine, requests)
            rates.append((count * 200 - done) / seconds)
        print(f"{count} together: {median(rates):.0f} tok/s")


def unused_places(args):
    engines = {parallel: load(args, parallel) for parallel in (1, 16)}
    rates = {1: [], 16: []}
    for round_ in range(3 * args.rounds):
        for parallel, engine in engines.items():
            answer = started(engine, text(round_, 40), 4000)
            rates[parallel].append(rate(engine, answer, 0.7))
            engine.abort(answer)
    one, sixteen = median(rates[1]), median(rates[16])
    print(f"--parallel 1: {one:.1f} tok/s; --parallel 16, unused: {sixteen:.1f} ({1 - sixteen / one:+.1%})")


def thirty_clients(args, parallel=8):
    engine = load(args, parallel)
    requests = [
        engine.add(text(300 + i, 60 + 40 * (i % 8)), sampling(40 + 10 * (i % 5)), client=str(i))
        for i in range(30)
    ]
    seconds = finish(engine, requests)
    waits = [r.timings.first_token - r.timings.arrived for r in requests]
    totals = [r.timings.finished - r.timings.arrived for r in requests]
    done = sum(len(r.output_token_ids) for r in requests)
    print(
        f"30 clients, {parallel} at once: {seconds:.1f} s, {done / seconds:.0f} tok/s; "
        f"first token mean {sum(waits) / 30:.2f} s, "
        f"longest {max(waits):.2f} ({max(waits) / (sum(waits) / 30):.2f}x); whole mean {sum(totals) / 30:.2f}, "
        f"longest {max(totals):.2f} ({max(totals) / (sum(totals) / 30):.2f}x)"
    )


if __name__ == "__main__":
    arguments_ = arguments(__doc__)
    for measure in (while_a_prompt_is_read, together, unused_places, thirty_clients):
        measure(arguments_)
