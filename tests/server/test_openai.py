"""The official client against a running server; malformed requests; clients that leave."""

import http.client
import json
import socket
import time

import openai
import pytest

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
    prompt = encode_chat(service.tokenizer, service.template, QUESTION).token_ids
    answer = client.chat.completions.create(
        model="x", messages=QUESTION, temperature=0.9, seed=5, max_tokens=16, extra_body={"top_k": 40}
    )
    sampling = SamplingParams(
        max_tokens=16, temperature=0.9, top_k=40, seed=5, stop_token_ids=frozenset(service.tokenizer.eos_ids)
    )
    while service.engine.num_running:
        time.sleep(0.01)
    tokens = list(smollm2_server.engine.generate(prompt, sampling))
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


def post(server, path, body, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, raw, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MALFORMED = {
    "not JSON": (TEXT, b"{", 400, "not valid JSON"),
    "nothing": (TEXT, b"", 400, ""),
    "not UTF-8": (TEXT, b'{"prompt": "\xff"}', 400, "parsing the body"),
    "nested deep": (TEXT, b'{"prompt":' + b"[" * 200_000, 400, "parsing the body"),
    "not an object": (TEXT, b"[]", 400, ""),
    "temperature as text": (TEXT, {"prompt": "a", "temperature": "hot"}, 400, "temperature: "),
    "max_tokens as text": (TEXT, {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens: "),
    "stream as text": (TEXT, {"prompt": "a", "stream": "maybe"}, 400, "stream: "),
    "prompt as object": (TEXT, {"prompt": {"a": 1}}, 400, "prompt"),
    "prompt as lists": (TEXT, {"prompt": [[1], [2]]}, 400, "prompt"),
    "stop as number": (TEXT, {"prompt": "a", "stop": 5}, 400, "stop"),
    "format as text": (TEXT, {"prompt": "a", "response_format": "json"}, 400, "response_format"),
    "half a character": (TEXT, b'{"prompt": "\\ud800"}', 400, "surrogate"),
    "content as number": (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "content"),
    "messages as text": (CHAT, {"messages": "hello"}, 400, "messages"),
    "no prompt": (TEXT, {}, 400, "prompt"),
    "empty prompt": (TEXT, {"prompt": []}, 400, "empty"),
    "id outside": (TEXT, {"prompt": [320]}, 400, "outside the vocabulary of 320"),
    "two prompts": (TEXT, {"prompt": ["a", "b"]}, 400, "2 prompts"),
    "temperature": (TEXT, {"prompt": "a", "temperature": -1}, 400, "temperature"),
    "nan": (TEXT, b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
    "max_tokens": (TEXT, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    "bias outside": (TEXT, {"prompt": "a", "logit_bias": {"999": 1}}, 400, "999"),
    "bias too large": (TEXT, {"prompt": "a", "logit_bias": {"1": 101}}, 400, "logit_bias"),
    "n": (TEXT, {"prompt": "a", "n": 2}, 400, "one choice"),
    "tools": (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "tools"),
    "no messages": (CHAT, {"messages": []}, 400, "messages"),
    "bad role": (CHAT, {"messages": [{"role": "king", "content": "a"}]}, 400, "role"),
    "no template": (CHAT, {"messages": [{"role": "user", "content": "a"}]}, 400, "no chat template"),
    "too long": (TEXT, {"prompt": [1] * 1024}, 400, "the context holds 1024"),
}


QUESTIONS = {
    "half a character": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    "the template's own": ({"messages": QUESTION, "chat_template_kwargs": {"messages": []}}, "messages"),
    "tools in kwargs": ({"messages": QUESTION, "chat_template_kwargs": {"tools": [1]}}, "tools"),
    "the budget": ({"messages": QUESTION, "chat_template_kwargs": {"budget": 1}}, "budget"),
    "control tokens": (
        {"messages": QUESTION, "chat_template_kwargs": {"control_tokens": []}},
        "control_tokens",
    ),
    "effort as number": ({"messages": QUESTION, "reasoning_effort": 7}, "reasoning_effort"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "image_url",
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_malformed_conversations(smollm2_server, name):
    body, message = QUESTIONS[name]
    status, answer = post(smollm2_server, CHAT, body)
    assert status == 400
    assert message in answer["error"]["message"]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_get_their_answer_and_the_next_one_works(tiny_server, name):
    path, body, status, message = MALFORMED[name]
    got, answer = post(tiny_server, path, body)
    assert got == status
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert post(tiny_server, TEXT, {"prompt": [1, 2], "max_tokens": 2})[0] == 200


def test_a_fault_of_ours_has_the_shape_of_an_error(tiny_server, monkeypatch):
    monkeypatch.setattr(tiny_server.service, "check_tokens", lambda _: 1 // 0)
    status, answer = post(tiny_server, TEXT, {"prompt": "a"})
    assert (status, answer["error"]["type"]) == (500, "server_error")


def test_too_long_is_named_by_code(tiny_server):
    assert post(tiny_server, TEXT, {"prompt": [1] * 1024})[1]["error"]["code"] == "context_length_exceeded"


def test_a_large_body_is_refused(tiny_server):
    status, answer = post(tiny_server, TEXT, b"{", {"Content-Length": str(1 << 30)})
    assert status == 413
    assert "at most" in answer["error"]["message"]


def test_unknown_paths_and_methods(tiny_server):
    assert post(tiny_server, "/v1/nothing", {})[0] == 404
    assert post(tiny_server, "/v1/models", {})[0] == 405


def test_health_and_metrics(tiny_server):
    connection = http.client.HTTPConnection("127.0.0.1", tiny_server.port, timeout=20)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read()) == {"status": "ok"}
    connection.request("GET", "/metrics")
    assert b"strata_num_requests_running 0.0" in connection.getresponse().read()


def leave(server, stream):
    """Asks for a long answer and hangs up: after the first piece of a stream, or while a whole answer is made."""
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 900, "stream": stream, "ignore_eos": True}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        else:
            time.sleep(0.02)


def idle(server, seconds=20):
    deadline = time.monotonic() + seconds
    while server.service.engine.num_running and time.monotonic() < deadline:
        time.sleep(0.005)
    return server.service.engine.num_running == 0


def test_clients_that_leave_leave_nothing_behind(tiny_server):
    engine = tiny_server.engine
    for i in range(200):
        leave(tiny_server, stream=i % 4 != 0)
    assert idle(tiny_server)
    before = tiny_server.service.engine.num_steps
    time.sleep(0.1)
    assert tiny_server.service.engine.num_steps == before, "nobody is waiting, so no step may run"
    assert post(tiny_server, TEXT, {"prompt": [1, 2], "max_tokens": 2})[0] == 200
    assert idle(tiny_server)
    engine.step()
    assert engine.num_free_pages == engine.num_pages


def test_a_client_that_leaves_stops_its_answer_long_before_its_end(tiny_server):
    steps = tiny_server.service.engine.num_steps
    leave(tiny_server, stream=True)
    assert idle(tiny_server)
    assert tiny_server.service.engine.num_steps - steps < 800


def test_a_port_in_use_is_one_line():
    with bind(ServerOptions(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind(ServerOptions(port=port))
