"""Reasoning through the official clients: apart from content, in blocks, and given back in the next turn."""

import anthropic
import openai
import pytest

ASK = [{"role": "user", "content": "x"}]
# Nothing of the random model's own ends thinking or the answer, and what it says is one letter.
QUIET = {"logit_bias": {str(256 + i): -100 for i in range(6)} | {"97": 100}}


@pytest.fixture
def url(thinker_server):
    return f"http://127.0.0.1:{thinker_server.port}"


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_keeps_reasoning_apart(client):
    asked = {"model": "x", "messages": ASK, "temperature": 0, "max_tokens": 40}
    extra = {"extra_body": {**QUIET, "reasoning_budget": 6}}
    message = client.chat.completions.create(**asked, **extra).choices[0].message
    assert message.reasoning_content == "aaaaaa"
    assert message.content == "a" * len(message.content) and len(message.content) > 10
    chunks = list(client.chat.completions.create(**asked, **extra, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "aaaaaa"
    assert "".join(d.content or "" for d in deltas) == message.content


def test_responses_have_a_reasoning_item(client):
    asked = {"model": "x", "input": "x", "temperature": 0, "max_output_tokens": 40}
    extra = {"extra_body": {"reasoning": {"budget": 6}, "seed": 1}}
    whole = client.responses.create(**asked, **extra)
    kinds = [item.type for item in whole.output]
    assert kinds[0] == "reasoning"
    assert whole.usage.output_tokens_details.reasoning_tokens >= 6
    events = [event.type for event in client.responses.create(**asked, **extra, stream=True)]
    assert "response.reasoning_text.delta" in events
    assert events.index("response.reasoning_text.done") < events.index("response.output_item.done")
    followed = client.responses.create(**asked, **extra, previous_response_id=whole.id)
    assert followed.usage.input_tokens > whole.usage.input_tokens


def test_messages_have_thinking_blocks_in_order(url):
    asked = {"model": "x", "messages": ASK, "max_tokens": 40}
    thinking = {"type": "enabled", "budget_tokens": 6}
    extra = {"extra_body": {"temperature": 0, "seed": 1}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**asked, thinking=thinking, **extra)
        assert whole.content[0].type == "thinking" and whole.content[0].signature
        assert whole.usage.output_tokens_details.thinking_tokens >= 6
        with client.messages.stream(**asked, thinking=thinking, **extra) as stream:
            events = [e for e in stream if e.type.startswith("content_block")]
            final = stream.get_final_message()
        assert final.content[0].thinking == whole.content[0].thinking
        deltas = [e.delta.type for e in events if e.type == "content_block_delta" and e.index == 0]
        assert set(deltas[:-1]) == {"thinking_delta"} and deltas[-1] == "signature_delta"
        assert [e.index for e in events if e.type == "content_block_start"] == list(range(len(final.content)))
        hidden = client.messages.create(**asked, thinking={**thinking, "display": "omitted"}, **extra)
        assert hidden.content[0].thinking == "" and hidden.content[0].signature
        turns = [*ASK, {"role": "assistant", "content": whole.content}, *ASK]
        client.messages.create(model="x", messages=turns, max_tokens=2)
        off = client.messages.create(**asked, thinking={"type": "disabled"}, **extra)
        assert all(block.type != "thinking" for block in off.content)
