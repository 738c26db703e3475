"""The official client against a running server; malformed requests; clients that leave."""

import http.client
import json
import socket
import time

import openai
import pytest
from requests_over import TEXT, idle, on_engine, post

from strata.config import ServerOptions
from strata.engine import SamplingParams
from strata.errors import UsageError
from strata.server import bind
from strata.text.chat import encode_chat

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture
def client(smollm2_server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{smollm2_server.port}/v1", api_key="none") as client:
        yield client


def test_chat_whole_and_streamed_are_one_text(client):
    asked = {"model": "test-model", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_the_server_computes_what_the_engine_computes(client, smollm2_server):
    service = smollm2_server.service
    prompt = encode_chat(service.tokenizer, service.preparer.template, QUESTION).token_ids
    answer = client.chat.completions.create(
        model="x", messages=QUESTION, temperature=0.9, seed=5, max_tokens=16, extra_body={"top_k": 40}
    )
    sampling = SamplingParams(
        max_tokens=16, temperature=0.9, top_k=40, seed=5, stop_token_ids=frozenset(service.tokenizer.eos_ids)
    )
    tokens = on_engine(smollm2_server, lambda engine: list(engine.generate(prompt, sampling)))
    text = service.tokenizer.decode([t for t in tokens if t not in service.tokenizer.eos_ids])
    assert answer.choices[0].message.content.strip() == text.strip()
    assert answer.usage.completion_tokens == len(tokens)


def test_completions_take_text_and_token_ids(client):
    asked = {"model": "x", "temperature": 0, "max_tokens": 4}
    by_text = client.completions.create(prompt="The capital of France is", **asked)
    by_ids = client.completions.create(prompt=[504, 3575, 282, 4649, 314], **asked)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.choices[0].text.startswith(" Paris")
    assert by_text.usage.prompt_tokens == 5


def test_stop_strings_end_the_text_before_them(client):
    answer = client.completions.create(
        model="x", prompt="The capital of France is", temperature=0, max_tokens=20, stop=["\n"]
    )
    assert answer.choices[0].text == " Paris."
    assert answer.choices[0].finish_reason == "stop"


def test_models(client):
    assert [m.id for m in client.models.list()] == ["test-model"]


def test_health_and_metrics(tiny_server):
    connection = http.client.HTTPConnection("127.0.0.1", tiny_server.port, timeout=60)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read()) == {"status": "ok"}
    connection.request("GET", "/metrics")
    assert b'vllm:num_requests_running{model_name="test-model"} 0.0' in connection.getresponse().read()


def leave(server, stream):
    """Asks for a long answer and hangs up: after the first piece of a stream, or while a whole answer is made."""
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 900, "stream": stream, "ignore_eos": True}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        else:
            time.sleep(0.02)


def test_clients_that_leave_leave_nothing_behind(tiny_server):
    for i in range(100):
        leave(tiny_server, stream=i % 4 != 0)
    assert idle(tiny_server)
    before = tiny_server.service.engine.num_steps
    time.sleep(0.1)
    assert tiny_server.service.engine.num_steps == before, "nobody is waiting, so no step may run"
    assert post(tiny_server, TEXT, {"prompt": [1, 2], "max_tokens": 2})[0] == 200
    assert idle(tiny_server)
    assert on_engine(tiny_server, lambda engine: engine.num_free_pages == engine.num_pages)


def test_a_client_that_leaves_stops_its_answer_long_before_its_end(tiny_server, monkeypatch):
    """Steps are held up a little, so that the end is far away however late the server looks."""
    engine, step = tiny_server.engine, tiny_server.engine.step
    monkeypatch.setattr(engine, "step", lambda: (time.sleep(0.01), step())[1])
    steps = tiny_server.service.engine.num_steps
    leave(tiny_server, stream=True)
    assert idle(tiny_server)
    assert tiny_server.service.engine.num_steps - steps < 800


def test_a_port_in_use_is_one_line():
    with bind(ServerOptions(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind(ServerOptions(port=port))
