"""Anthropic's official client against a running server: whole and streamed answers, tools, counting, refusals."""

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
GREEDY = {"extra_body": {"temperature": 0}}
TOOL = {
    "name": "get_weather",
    "description": "Weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(smollm2_server):
    url = f"http://127.0.0.1:{smollm2_server.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed_is_the_same(client):
    asked = {"model": "x", "messages": QUESTION, "max_tokens": 12, "system": "Be brief."} | GREEDY
    whole = client.messages.create(**asked)
    assert whole.content[0].type == "text" and "Paris" in whole.content[0].text
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 12
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    raw = [kind for kind in kinds if kind not in ("text", "ping")]
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequences_are_named(client):
    answer = client.messages.create(
        model="x", messages=QUESTION, max_tokens=30, extra_body={"temperature": 0}, stop_sequences=["aris"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "aris")
    assert not answer.content[0].text.endswith("aris")


def test_counting_agrees_with_what_is_read(client):
    more = {"system": "Be brief.", "tools": [TOOL]}
    counted = client.messages.count_tokens(model="x", messages=QUESTION, **more)
    answer = client.messages.create(model="x", messages=QUESTION, max_tokens=1, **more)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    without = client.messages.count_tokens(model="x", messages=QUESTION, system="Be brief.")
    assert without.input_tokens < counted.input_tokens


def test_models(client):
    assert [model.id for model in client.models.list()] == ["test-model"]
    assert client.models.retrieve("test-model").id == "test-model"


REFUSED = {
    "an image": ([{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}], "image"),
    "a file": ([{"type": "document", "source": {"type": "file", "file_id": "/etc/passwd"}}], "document"),
    "unknown": ([{"type": "video"}], "video"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_in_anthropics_shape(client, name):
    content, message = REFUSED[name]
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        client.messages.create(model="x", messages=[{"role": "user", "content": content}], max_tokens=3)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
