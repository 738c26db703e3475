"""Malformed requests of many kinds: each gets its status and message, and the next request works."""

import json
import socket

import pytest
from requests_over import CHAT, COUNT, EMBEDDINGS, MESSAGES, RESPONSES, TEXT, ask, post

USER = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}


def text(**fields):
    return TEXT, {"prompt": "a", **fields}


def chat(**fields):
    return CHAT, {"messages": USER, **fields}


def said(content, role="user", **fields):
    return CHAT, {"messages": [{"role": role, "content": content, **fields}]}


def responses(**fields):
    return RESPONSES, {"input": "a", **fields}


def claude(**fields):
    return MESSAGES, {"model": "x", "max_tokens": 2, "messages": USER, **fields}


def format_(**fields):
    return chat(response_format=fields)


def schema(schema, **fields):
    return format_(type="json_schema", json_schema={"name": "s", "schema": schema, **fields})


# What any model refuses, with or without a chat template.
BODIES = {
    "not JSON": ((TEXT, b"{"), "not valid JSON"),
    "nothing": ((TEXT, b""), "required"),
    "not UTF-8": ((TEXT, b'{"prompt": "\xff"}'), "parsing the body"),
    "nested deep": ((TEXT, b'{"prompt":' + b"[" * 200_000), "parsing the body"),
    "not an object": ((TEXT, b"[]"), ""),
    "half a character": ((TEXT, b'{"prompt": "\\ud800"}'), "surrogate"),
    "nan": ((TEXT, b'{"prompt": "a", "temperature": NaN}'), "temperature"),
    "temperature as text": (text(temperature="hot"), "temperature: "),
    "temperature as digits": (text(temperature="1"), "temperature: "),
    "temperature below zero": (text(temperature=-1), "temperature"),
    "max_tokens as text": (text(max_tokens="many"), "max_tokens: "),
    "max_tokens zero": (text(max_tokens=0), "max_tokens"),
    "max_tokens a half": (text(max_tokens=1.5), "max_tokens"),
    "top_p zero": (text(top_p=0), "top_p"),
    "top_k below": (text(top_k=-2), "top_k"),
    "min_p one": (text(min_p=1), "min_p"),
    "penalty": (text(presence_penalty=3), "presence_penalty"),
    "repetition": (text(repetition_penalty=0), "repetition_penalty"),
    "seed": (text(seed=2**64), "seed"),
    "stream as text": (text(stream="maybe"), "stream: "),
    "stream options alone": (text(stream_options={"include_usage": True}), "set stream"),
    "stop as number": (text(stop=5), "stop"),
    "many stops": (text(stop=["a"] * 17), "stop"),
    "n zero": (text(n=0), "n: "),
    "n many": (text(n=17), "n: "),
    "suffix": (text(suffix="b"), "suffix is not supported"),
    "best_of": (text(best_of=4), "best_of is not supported"),
    "echo with logprobs": (text(echo=True, logprobs=1), "echo with logprobs"),
    "logprobs many": (text(logprobs=21), "logprobs"),
    "logprobs below": (text(logprobs=-1), "logprobs"),
    "prompt as object": ((TEXT, {"prompt": {"a": 1}}), "prompt"),
    "no prompt": ((TEXT, {}), "prompt"),
    "empty prompt": ((TEXT, {"prompt": []}), "empty"),
    "an empty prompt among others": ((TEXT, {"prompt": ["a", ""]}), "empty"),
    "many prompts": ((TEXT, {"prompt": ["a"] * 65}), "65 prompts"),
    "id outside": ((TEXT, {"prompt": [320]}), "outside the vocabulary of 320"),
    "id below": ((TEXT, {"prompt": [-1]}), "outside the vocabulary of 320"),
    "id a half": ((TEXT, {"prompt": [0.5]}), "prompt"),
    "too long": ((TEXT, {"prompt": [1] * 1024}), "the context holds 1024"),
    "bias outside": (text(logit_bias={"999": 1}), "999"),
    "bias too large": (text(logit_bias={"1": 101}), "logit_bias"),
    "bias by word": (text(logit_bias={"yes": 1}), "keys must be token ids"),
    "format as text": (text(response_format="json"), "response_format"),
    "format unknown": (text(response_format={"type": "yaml"}), "yaml"),
    "grammar broken": (text(grammar="start: nowhere"), "unknown name"),
    "grammar without an end": (text(grammar="root ::= root"), "cannot be used"),
    "grammar as number": (text(grammar=5), "must be text"),
    "grammar empty": (text(grammar=""), "empty"),
    "grammar by two names": (text(grammar='start: "a"', guided_regex="a"), "more than one format"),
    "regex broken": (text(guided_regex="("), "invalid regex"),
    "choice empty": (text(guided_choice=[]), "choice"),
    "choice of numbers": (text(guided_choice=[1]), "choice"),
    "structured nothing": (text(structured_outputs={}), "structured_outputs"),
    "no template": (chat(), "no chat template"),
    "an embedding of nothing": ((EMBEDDINGS, {"input": []}), "empty"),
    "an embedding of a number": ((EMBEDDINGS, {"input": 5}), "input"),
    "an embedding in a strange form": (
        (EMBEDDINGS, {"input": "a", "encoding_format": "hex"}),
        "encoding_format",
    ),
    "an embedding of other width": ((EMBEDDINGS, {"input": "a", "dimensions": 10**9}), "dimensions"),
    "an embedding too long": ((EMBEDDINGS, {"input": [[1] * 1025]}), "1024"),
}

# What a chat model refuses.
CONVERSATIONS = {
    "half a character": ((CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'), "surrogate"),
    "messages as text": ((CHAT, {"messages": "hello"}), "messages"),
    "no messages": ((CHAT, {"messages": []}), "messages"),
    "many messages": ((CHAT, {"messages": USER * 4097}), "messages"),
    "content as number": (said(5), "content"),
    "bad role": (said("a", role="king"), "role"),
    "no role": ((CHAT, {"messages": [{"content": "a"}]}), "role"),
    "a picture": (said([{"type": "image_url", "image_url": {"url": "x"}}]), "image_url"),
    "a file": (said([{"type": "file", "file": {"file_id": "/etc/passwd"}}]), "'file'"),
    "a sound": (said([{"type": "input_audio", "input_audio": {}}]), "input_audio"),
    "a part without text": (said([{"type": "text"}]), "text"),
    "calls as text": (said("a", role="assistant", tool_calls="f"), "tool_calls"),
    "the template's own": (chat(chat_template_kwargs={"messages": []}), "messages"),
    "tools in kwargs": (chat(chat_template_kwargs={"tools": [1]}), "tools"),
    "the budget": (chat(chat_template_kwargs={"budget": 1}), "budget"),
    "control tokens": (chat(chat_template_kwargs={"control_tokens": []}), "control_tokens"),
    "effort as number": (chat(reasoning_effort=7), "reasoning_effort"),
    "budget below": (chat(reasoning_budget=-1), "reasoning_budget"),
    "top_logprobs alone": (chat(top_logprobs=3), "needs logprobs"),
    "top_logprobs many": (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    "functions": (chat(functions=[{"name": "f"}]), "functions is not supported"),
    "audio": (chat(modalities=["audio"]), "modalities"),
    "tools as object": (chat(tools={}), "tools"),
    "tool without function": (chat(tools=[{"type": "function"}]), "function"),
    "tool of another type": (chat(tools=[{"type": "web_search"}]), "type"),
    "tool without name": (chat(tools=[{"type": "function", "function": {}}]), "name"),
    "tool with a strange name": (chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "name"),
    "two tools of one name": (chat(tools=[TOOL, TOOL]), "same name"),
    "choice without tools": (chat(tool_choice="required"), "no tools"),
    "choice of no tool": (
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        "'g'",
    ),
    "choice unknown": (chat(tools=[TOOL], tool_choice="maybe"), "tool_choice"),
    "choice of nothing": (chat(tools=[TOOL], tool_choice={"type": "allowed_tools"}), "allowed_tools"),
    "grammar beside tools": (chat(tools=[TOOL], grammar='start: "a"'), "cannot be combined"),
    "tool with a broken schema": (
        chat(
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "strange"}}}],
            tool_choice="required",
        ),
        "strange",
    ),
    "schema missing": (format_(type="json_schema", json_schema={"name": "s"}), "schema is missing"),
    "schema as text": (schema("a"), "must be an object"),
    "schema of a strange type": (schema({"type": "strin"}), "strin"),
    "schema with not": (schema({"not": {}}), "not"),
    "schema from elsewhere": (schema({"$ref": "http://127.0.0.1/x"}), "127.0.0.1"),
    "schema from a file": (schema({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
    "schema that is too large": (schema({"enum": ["a" * 300_000]}), "at most"),
    "responses without input": ((RESPONSES, {}), "input"),
    "responses with an item unknown": (responses(input=[{"type": "computer_call"}]), "computer_call"),
    "responses with a picture": (
        responses(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        "input_image",
    ),
    "responses with a tool of theirs": (responses(tools=[{"type": "web_search"}]), "web_search"),
    "responses in the background": (responses(background=True), "background"),
    "responses cut": (responses(truncation="auto"), "truncation"),
    "responses with a bad role": (responses(input=[{"role": "king", "content": "a"}]), "king"),
    "responses with an output for no call": (
        responses(input=[{"type": "function_call_output", "output": 5}]),
        "function_call_output",
    ),
    "claude without max_tokens": ((MESSAGES, {"model": "x", "messages": USER}), "max_tokens"),
    "claude without messages": (claude(messages=[]), "messages"),
    "claude without a model": ((MESSAGES, {"max_tokens": 2, "messages": USER}), "model"),
    "claude with a tool role": (claude(messages=[{"role": "tool", "content": "a"}]), "role"),
    "claude with a tool of theirs": (
        claude(tools=[{"type": "bash_20250124", "name": "bash"}]),
        "bash_20250124",
    ),
    "claude with a tool without schema": (claude(tools=[{"name": "f"}]), "input_schema"),
    "claude choosing no tool": (claude(tools=[CLAUDE_TOOL], tool_choice={"type": "tool"}), "name"),
    "claude thinking nothing": (claude(thinking={"type": "enabled", "budget_tokens": 0}), "budget_tokens"),
    "claude with a strange block": (
        claude(messages=[{"role": "user", "content": [{"type": "video"}]}]),
        "video",
    ),
    "claude with a result without id": (
        claude(messages=[{"role": "user", "content": [{"type": "tool_result"}]}]),
        "tool_use_id",
    ),
    "claude with input as text": (
        claude(messages=[{"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}]),
        "input must be an object",
    ),
    "claude counting nothing": ((COUNT, {"model": "x"}), "messages"),
}


def check(server, request, message):
    path, body = request
    status, answer = post(server, path, body)
    assert status == 400, answer
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert ("type" in answer) == (path in (MESSAGES, COUNT))


def test_there_are_enough_kinds():
    assert len(BODIES) + len(CONVERSATIONS) >= 60


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_gets_its_answer_and_the_next_one_works(tiny_server, name):
    check(tiny_server, *BODIES[name])
    assert post(tiny_server, TEXT, {"prompt": [1, 2], "max_tokens": 2})[0] == 200


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_malformed_conversation_gets_its_answer(smollm2_server, name):
    check(smollm2_server, *CONVERSATIONS[name])


def test_and_the_next_conversation_works(smollm2_server):
    assert post(smollm2_server, *chat(max_tokens=2))[0] == 200


def test_unknown_responses_are_404(smollm2_server):
    for path, body in (responses(previous_response_id="resp_x"), (f"{RESPONSES}/resp_x", None)):
        status, _, answer = ask(smollm2_server, "POST" if body else "GET", path, body)
        assert status == 404 and "resp_x" in json.loads(answer)["error"]["message"]


def test_a_fault_of_ours_has_the_shape_of_an_error(tiny_server, monkeypatch):
    monkeypatch.setattr(tiny_server.service, "room", lambda _: 1 // 0)
    status, answer = post(tiny_server, TEXT, {"prompt": "a"})
    assert (status, answer["error"]["type"]) == (500, "server_error")


def test_too_long_is_named_by_code(tiny_server):
    assert post(tiny_server, TEXT, {"prompt": [1] * 1024})[1]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [TEXT, EMBEDDINGS])
def test_too_long_is_seen_before_it_is_encoded(tiny_server, path, monkeypatch):
    monkeypatch.setattr(tiny_server.service.tokenizer, "encode", None)
    status, answer = post(tiny_server, path, {"prompt": "a" * 90_000, "input": "a" * 90_000})
    assert status == 400 and "at least" in answer["error"]["message"]


def test_a_conversation_that_is_too_long(smollm2_server, monkeypatch):
    monkeypatch.setattr(smollm2_server.service.preparer, "prepare", None)
    status, answer = post(smollm2_server, *said("a" * 90_000))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_tools_beyond_a_grammar(smollm2_server):
    properties = {f"p{i}": {"type": "string"} for i in range(400)}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"properties": properties}}}
        for i in range(60)
    ]
    status, answer = post(smollm2_server, *chat(tools=tools, tool_choice="required"))
    assert status == 400 and "it is too large" in answer["error"]["message"]


def test_another_type_of_body(tiny_server):
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        status, answer = post(tiny_server, TEXT, b'{"prompt": "a"}', {"Content-Type": kind})
        assert status == 400 and "Content-Type: application/json" in answer["error"]["message"]


def test_a_large_body_is_refused(tiny_server):
    status, answer = post(tiny_server, TEXT, b"{", {"Content-Length": str(1 << 30)})
    assert status == 413
    assert "at most" in answer["error"]["message"]


def test_who_sends_a_little_too_much_reads_why(tiny_server):
    """It sends all before it looks for an answer; a connection closed meanwhile would be all it gets."""
    status, answer = post(tiny_server, TEXT, b" " * (17 << 20))
    assert status == 413 and "at most 16,777,216" in answer["error"]["message"]


def test_a_body_that_does_not_say_its_length_has_the_same_limit(tiny_server):
    def chunks(count):
        return b"".join(b"100000\r\n" + b" " * (1 << 20) + b"\r\n" for _ in range(count))

    for path in (TEXT, MESSAGES, RESPONSES):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=60) as connection:
            connection.sendall(head.encode() + chunks(20) + b"0\r\n\r\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 413 ") and b"at most 16,777,216" in answer


def test_head_answers_without_a_body(tiny_server):
    for path in ("/health", "/metrics", "/v1/models", "/"):
        status, headers, body = ask(tiny_server, "HEAD", path)
        assert (status, body) == (200, b"") and headers["content-type"]
    assert ask(tiny_server, "PUT", "/health")[1]["allow"] == "GET"


def test_unknown_paths_and_methods(tiny_server):
    assert post(tiny_server, "/v1/nothing", {})[0] == 404
    assert post(tiny_server, "/v1/models", {})[0] == 405
    for page in ("/docs", "/redoc"):  # they would load scripts from elsewhere
        assert ask(tiny_server, "GET", page)[0] == 404
