"""What goes wrong stays where it went wrong: silence, slow clients, faults, steps that hang, an idle model, the end."""

import asyncio
import contextlib
import json
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from requests_over import CHAT, TEXT, ask, idle, post
from tiny import write_tiny_llama

from strata.config import EngineOptions, ServerOptions
from strata.engine import Engine, SamplingParams
from strata.errors import BusyError, FaultError, UsageError
from strata.server.engine_thread import EngineThread
from strata.server.repetition import RepetitionGuard
from strata.server.streaming import kept_alive
from strata.server.ticket import Submission

LONG = {"prompt": [1, 2, 3], "max_tokens": 900, "ignore_eos": True}


@pytest.fixture
def tiny(tmp_path, tokenizer_metadata, serving):
    """`tiny(**server_options)`: a server of its own."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", **tokenizer_metadata)

    def start(reload=False, **options):
        return serving(
            path,
            server_options=options,
            reload=reload,
            max_model_len=1024,
            max_num_seqs=4,
            threads=1,
            prefill=128,
        )

    return start


def raw(server, data, seconds=60, see=None):
    """What comes back on a connection until it ends, and how long that took. `see` is shown what has come so far."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
                if see is not None:
                    see(received)
    return received, time.monotonic() - begin


def request(body, path=TEXT):
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload


class Slow:
    """An engine whose steps wait at a gate, once there were `steps` of them."""

    def __init__(self, engine, monkeypatch, steps=0):
        self.gate, self.waiting, self.steps, self._step = (
            threading.Event(),
            threading.Event(),
            steps,
            engine.step,
        )
        self.gate.set()
        monkeypatch.setattr(engine, "step", self.step)

    def step(self):
        self.steps -= 1
        if self.steps < 0 and not self.gate.is_set():
            self.waiting.set()
            self.gate.wait(60)
        return self._step()


CLOSE = b"\r\nConnection: close\r\n"


def test_a_silent_prompt_is_kept_alive(tiny, monkeypatch):
    server = tiny(heartbeat=0.1)
    slow = Slow(server.engine, monkeypatch)
    slow.gate.clear()
    body = request({**LONG, "max_tokens": 2, "stream": True}).replace(b"\r\n", CLOSE, 1)
    answer, _ = raw(server, body, see=lambda s: s.count(b": keep-alive") < 2 or slow.gate.set())
    assert answer.count(b": keep-alive") >= 2
    assert answer.index(b": keep-alive") < answer.index(b"data: ") < answer.index(b"[DONE]")


def test_the_longest_silence_that_may_be_set_is_15_seconds():
    assert ServerOptions().heartbeat <= 15
    with pytest.raises(UsageError, match="heartbeat"):
        ServerOptions(heartbeat=16)


def test_keeping_alive_loses_nothing():
    async def collected():
        found, silent = [], asyncio.Event()

        async def items():
            for i in range(4):
                await silent.wait()
                silent.clear()
                yield i

        async for item in kept_alive(items(), 0.01):
            found.append(item)
            if item is None:
                silent.set()
        return found

    found = asyncio.run(collected())
    assert [item for item in found if item is not None] == [0, 1, 2, 3]
    assert found.count(None) >= 4


def test_half_a_request_does_not_hold_a_connection(tiny):
    server = tiny(client_timeout=2)
    parts = (
        b"POST /v1/comp",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
        request(LONG)[:-5],
        b"",
    )
    with ThreadPoolExecutor(len(parts)) as pool:
        assert min(seconds for _, seconds in pool.map(partial(raw, server), parts)) >= 2
    assert post(server, TEXT, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_a_client_that_waits_for_its_answer_may_be_silent(tiny, monkeypatch):
    server = tiny(client_timeout=1.5)
    slow = Slow(server.engine, monkeypatch)
    slow.gate.clear()
    threading.Thread(target=lambda: (slow.waiting.wait(60), time.sleep(2), slow.gate.set())).start()
    assert post(server, TEXT, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_a_client_that_reads_nothing_is_given_up(tiny):
    server = tiny(client_timeout=1.5)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(request({**LONG, "stream": True, "n": 16, "logprobs": 20}))
        assert idle(server), "its answers end when nobody reads them"
    assert post(server, TEXT, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_a_fault_of_one_request_ends_that_one(tiny):
    server = tiny()
    results = {}

    class Broken:
        count = 0

        def fill(self, allowed):
            self.count += 1
            allowed[:] = -1
            if self.count == 20:
                raise FaultError("a mask that fails")

        def accept(self, token_id):
            pass

    def other():
        results["other"] = post(server, TEXT, {**LONG, "max_tokens": 60})

    thread = threading.Thread(target=other)
    thread.start()
    call = server.service.generations
    server.service.generations = lambda calls: call([_masked(c, Broken()) for c in calls])
    time.sleep(0.05)
    status, answer = post(server, TEXT, {**LONG, "max_tokens": 61})
    server.service.generations = call
    thread.join()
    assert (status, answer["error"]["message"]) == (500, "a mask that fails")
    assert results["other"][0] == 200 and results["other"][1]["usage"]["completion_tokens"] == 60


def _masked(call, mask):
    return replace(call, mask=lambda: mask) if call.wishes.sampling.max_tokens == 61 else call


def test_a_busy_engine_says_so(tiny, monkeypatch):
    server = tiny()

    def full(*_, **__):
        raise BusyError("2 requests are open; --max-queue is 2")

    monkeypatch.setattr(server.engine, "add", full)
    for stream in (False, True):
        status, headers, answer = ask(server, "POST", TEXT, {"prompt": [1], "stream": stream, "n": 2})
        assert (status, headers["retry-after"]) == (429, "1")
        assert json.loads(answer)["error"]["type"] == "rate_limit_error"


def test_a_step_that_hangs_ends_requests_and_shows(tiny, monkeypatch):
    server = tiny(step_timeout=2)
    slow = Slow(server.engine, monkeypatch)
    slow.gate.clear()
    status, answer = post(server, TEXT, LONG)
    assert status == 500 and "does not end" in answer["error"]["message"]
    assert ask(server, "GET", "/health")[0] == 503
    assert post(server, TEXT, LONG)[0] == 500, "at once, not after another wait"
    slow.gate.set()
    deadline = time.monotonic() + 60
    while ask(server, "GET", "/health")[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert post(server, TEXT, {"prompt": [1], "max_tokens": 1})[0] == 200


def test_an_idle_model_leaves_memory_and_comes_back(tiny):
    server = tiny(reload=True, idle_unload=0.2)
    first = post(server, TEXT, {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0})[1]
    thread, deadline = server.service.engine, time.monotonic() + 60
    while thread.loaded and time.monotonic() < deadline:
        ask(server, "GET", "/metrics")  # to look is not to work
    assert not thread.loaded
    assert b"strata_model_loaded 0.0" in ask(server, "GET", "/metrics")[2]
    again = post(server, TEXT, {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0})[1]
    assert again["choices"] == first["choices"]


def test_nothing_holds_an_idle_model(tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    engine = Engine.load(path, EngineOptions(max_model_len=256, threads=1))
    held = weakref.ref(engine)
    thread = EngineThread(engine, lambda: Engine.load(path), 0.05)
    del engine
    thread.start()
    deadline = time.monotonic() + 60
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() is None
    thread.stop()


def test_the_end_lets_answers_finish_and_then_ends_them(tiny):
    server = tiny(shutdown_timeout=60)
    results = {}

    def answer():
        results["answer"] = post(server, TEXT, {**LONG, "max_tokens": 150})

    thread = threading.Thread(target=answer)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.service.engine.num_open and time.monotonic() < deadline:
        time.sleep(0.001)
    server.server.should_exit = True
    thread.join(timeout=60)
    assert results["answer"][0] == 200 and results["answer"][1]["usage"]["completion_tokens"] == 150
    with pytest.raises(OSError):
        while time.monotonic() < deadline + 60:
            post(server, TEXT, {"prompt": [1], "max_tokens": 1})


def test_requests_after_the_engine_stopped_get_an_error(tiny):
    async def late(thread):
        ticket = thread.submit(Submission([1, 2], SamplingParams(max_tokens=3)))
        await asyncio.wait_for(ticket.added, 60)

    server = tiny()
    server.service.engine.stop()
    with pytest.raises(FaultError, match="stopping"):
        asyncio.run(late(server.service.engine))


def test_answers_that_repeat_themselves_end_by_option(tiny):
    server = tiny()
    body = {**LONG, "logit_bias": {"65": 100}, "temperature": 0}
    choice = post(server, TEXT, {**body, "repetition_limit": 40})[1]["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
    assert 40 <= len(choice["text"]) < 60
    assert len(post(server, TEXT, {**body, "max_tokens": 100})[1]["choices"][0]["text"]) == 100


def test_the_guard_sees_periods_and_nothing_else():
    def ends_at(tokens, limit=64):
        guard = RepetitionGuard(limit)
        return next((i for i, token in enumerate(tokens) if guard.push(token)), None)

    assert ends_at([7] * 200) == 64
    assert ends_at(list(range(10)) * 20) == 73
    assert ends_at([*range(500), *[1, 2] * 100]) == 500 + 65
    assert ends_at(range(5000)) is None
    assert ends_at([i * i % 9973 for i in range(3000)]) is None


def test_no_path_reaches_a_file(smollm2_server):
    for part in (
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "file", "file": {"filename": "/etc/passwd"}},
    ):
        status, answer = post(smollm2_server, CHAT, {"messages": [{"role": "user", "content": [part]}]})
        assert status == 400 and "root:" not in json.dumps(answer)
    for path in ("/../etc/passwd", "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fetc%2fpasswd"):
        assert ask(smollm2_server, "GET", path)[0] == 404


def test_who_waits_in_the_queue_is_told_where(tiny, monkeypatch):
    """Steps are slow until it was told; one that waited for that would keep the engine from taking the request in."""
    server, seen = tiny(heartbeat=0.05), threading.Event()
    step = server.engine.step
    monkeypatch.setattr(server.engine, "step", lambda: (seen.is_set() or time.sleep(0.02), step())[1])
    threads = [threading.Thread(target=post, args=(server, TEXT, {**LONG, "seed": i})) for i in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while server.service.engine.num_open < 4 and time.monotonic() < deadline:
        time.sleep(0.001)

    told = b": keep-alive, number 1 in the queue, about "
    body = request({**LONG, "max_tokens": 2, "stream": True}).replace(b"\r\n", CLOSE, 1)
    answer, _ = raw(server, body, see=lambda s: told not in s or seen.set())
    assert told in answer
    for thread in threads:
        thread.join()


def test_a_client_that_breaks_off_and_asks_again_reads_on(tiny, monkeypatch):
    server = tiny()
    prompt = {"prompt": [i % 250 for i in range(1000)], "max_tokens": 2, "temperature": 0}
    slow = Slow(server.engine, monkeypatch, steps=6)
    slow.gate.clear()
    begin = request({**prompt, "stream": True})
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(begin)
        assert slow.waiting.wait(60)
    slow.gate.set()
    assert idle(server)
    cached = post(server, TEXT, prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 64 <= cached < 1000, "what was read before is there"
