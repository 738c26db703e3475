"""What the server costs: tokens a second of N streams over HTTP on loopback against the engine by itself, and what
telling a step's tokens takes.

usage: over_http.py [--model FILE] [--streams N] [--tokens N] [--rounds N]
"""

import argparse
import asyncio
import http.client
import json
import statistics
import threading
import time
from pathlib import Path
from time import perf_counter

import uvicorn

from strata.config import EngineOptions, ServerOptions
from strata.engine import Engine, Request, SamplingParams
from strata.server import bind, create_app, server_config
from strata.server.engine_thread import EngineThread
from strata.server.ticket import Submission, Ticket

PROMPT = [(i * 37) % 1000 + 100 for i in range(40)]


def direct(engine: Engine, streams: int, tokens: int) -> float:
    """Tokens a second of all together by the wall clock."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    begin = perf_counter()
    requests = [engine.add(PROMPT, sampling) for _ in range(streams)]
    while any(r.finish_reason is None for r in requests):
        engine.step()
    seconds = perf_counter() - begin
    while engine.has_work:
        engine.step()
    return streams * tokens / seconds


def stream(port: int, tokens: int) -> None:
    """One client that reads a stream."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert b"[DONE]" in connection.getresponse().read()


def over_http(port: int, streams: int, tokens: int) -> float:
    """The same through the server, whose clients are threads of this process."""
    threads = [threading.Thread(target=stream, args=(port, tokens)) for _ in range(streams)]
    begin = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return streams * tokens / (perf_counter() - begin)


def telling_us(rows: int, steps: int = 200) -> float:
    """Median microseconds of Python that telling a step's tokens takes the engine's thread."""

    async def run() -> float:
        thread = EngineThread.__new__(EngineThread)
        loop = asyncio.get_running_loop()
        thread._tickets = [
            Ticket(Submission([1], SamplingParams()), loop, loop.create_future()) for _ in range(rows)
        ]
        for ticket in thread._tickets:
            ticket.request = Request(1, [1], SamplingParams())
        times = []
        for _ in range(steps):
            for ticket in thread._tickets:
                ticket.request.output_token_ids.append(7)
            begin = perf_counter()
            thread._tell()
            times.append(perf_counter() - begin)
            await asyncio.sleep(0)
        return statistics.median(times) * 1e6

    return asyncio.run(run())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    engine = Engine.load(given.model, EngineOptions(max_model_len=1024, max_num_seqs=given.streams))
    settings = ServerOptions(port=0)
    listener = bind(settings)
    app = create_app(engine, "model", options=settings)
    server = uvicorn.Server(server_config(app, settings))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    alone, served = [], []
    for round_ in range(given.rounds + 1):
        s = over_http(listener.getsockname()[1], given.streams, given.tokens)
        while app.state.service.engine.num_open:
            time.sleep(0.01)
        time.sleep(0.2)
        d = direct(engine, given.streams, given.tokens)
        if round_:
            alone.append(d)
            served.append(s)
    server.should_exit = True
    found = {
        "streams": given.streams,
        "engine_tps": round(statistics.median(alone), 1),
        "http_tps": round(statistics.median(served), 1),
        "telling_32_rows_us": round(telling_us(32), 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
