"""How requests share an engine: python -m benchmarks.serving.sharing

Prints: an answer's speed while a 4K prompt is read, against its speed alone; eight clients together against one; an
answer's speed when seven others have left; an unused --parallel 16 against --parallel 1; thirty clients' longest wait
against the mean.
"""

import time

from benchmarks.serving.common import arguments, finish, load, median, sampling, started, text


def while_a_prompt_is_read(args, blocks=8, tokens=15):
    """The same answer in two engines, one of which reads a prompt, in turns of a few tokens, so that what else the
    machine does hits both."""
    alone, beside = load(args, parallel=2), load(args, parallel=2)
    ratios, gaps = [], []
    for round_ in range(args.rounds):
        answers = [started(engine, text(round_, 40), 4000) for engine in (alone, beside)]
        prompt = beside.add(text(100 + round_, 4096), sampling(1))
        for _ in range(blocks):
            solo = steps(alone, answers[0], tokens, keep=True)
            shared = steps(beside, answers[1], tokens, keep=True)
            ratios.append(sum(solo) / sum(shared))
            gaps.append(max(shared) * 1e3)
        assert not prompt.output_token_ids, "the answer outlasted the prompt"
        beside.abort(prompt)
        for engine, answer in zip((alone, beside), answers, strict=True):
            engine.abort(answer)
    gap = f"longest step of {tokens}, median {median(gaps):.0f} ms"
    print(f"beside a 4K prompt: {median(ratios):.0%} of solo speed, least {min(ratios):.0%}; {gap}")


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


def last_one(args, tokens=100):
    """The same tokens alone, and by one of eight when the others have left."""
    engine, shares = load(args, parallel=8), []
    for round_ in range(args.rounds):
        alone = started(engine, text(500 + round_, 40), 4000)
        steps(engine, alone, 30, keep=True)
        solo = steps(engine, alone, tokens)
        requests = [started(engine, text(500 + round_ + 20 * i, 40), 4000) for i in range(8)]
        steps(engine, requests[0], 30 - len(requests[0].output_token_ids), keep=True)
        for request in requests[1:]:
            engine.abort(request)
        shares.append(sum(solo) / sum(steps(engine, requests[0], tokens)))
    print(f"the last of eight: {median(shares):.0%} of solo speed")


def unused_places(args):
    """The same answer in two engines, a step of each in turn, so that what else the machine does hits both."""
    engines = {parallel: load(args, parallel) for parallel in (1, 16)}
    seconds = {1: [], 16: []}
    answers = {parallel: started(engine, text(0, 40), 4000) for parallel, engine in engines.items()}
    for turn in range(400 * args.rounds):
        for parallel in (1, 16) if turn % 2 else (16, 1):
            seconds[parallel] += steps(engines[parallel], answers[parallel], 1, keep=True)
    one, sixteen = (median(seconds[parallel]) * 1e3 for parallel in (1, 16))
    print(
        f"--parallel 1: {one:.3f} ms a step; --parallel 16, unused: {sixteen:.3f} ({sixteen / one - 1:+.1%})"
    )


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
    measures = {
        m.__name__: m for m in (while_a_prompt_is_read, together, last_one, unused_places, thirty_clients)
    }
    arguments_ = arguments(__doc__, only=list(measures))
    for name in [arguments_.only] if arguments_.only else measures:
        measures[name](arguments_)
