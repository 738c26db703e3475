"""The Responses API with the official client: events, the store, what is kept from whom."""

import openai
import pytest

from strata.server.openai.responses.store import ResponseStore

QUESTION = "What is the capital of France? Answer in one word."
ASKED = {"model": "x", "temperature": 0, "max_output_tokens": 16}


@pytest.fixture
def client(smollm2_server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{smollm2_server.port}/v1", api_key="none") as client:
        yield client


def test_a_response_whole_and_streamed_is_the_same(client):
    whole = client.responses.create(input=QUESTION, instructions="Be brief.", **ASKED)
    assert "Paris" in whole.output_text and whole.status == "completed"
    with client.responses.stream(input=QUESTION, instructions="Be brief.", **ASKED) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_what_was_stored_can_be_gone_on_from_and_forgotten(client):
    first = client.responses.create(input="My name is Ada.", **ASKED)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    asked = [item.content[0].text for item in client.responses.input_items.list(first.id)]
    assert asked == ["My name is Ada."]
    second = client.responses.create(input="What is my name?", previous_response_id=first.id, **ASKED)
    stateless = client.responses.create(
        input=[
            {"role": "user", "content": "My name is Ada."},
            *(item.model_dump() for item in first.output),
            {"role": "user", "content": "What is my name?"},
        ],
        store=False,
        **ASKED,
    )
    assert second.usage.input_tokens == stateless.usage.input_tokens
    assert second.output_text == stateless.output_text
    client.responses.delete(first.id)
    for gone in (first.id, stateless.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)


def test_an_answer_cut_by_its_limit_says_so(client):
    cut = client.responses.create(model="x", input="Count to twenty.", temperature=0, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_the_store_is_bounded_and_keeps_clients_apart():
    store = ResponseStore(max_responses=2, max_bytes=10_000)
    for i in range(3):
        store.put({"id": str(i)}, [], [], owner="a")
    assert [store.get(str(i), "a") is not None for i in range(3)] == [False, True, True]
    assert store.get("2", "b") is None and not store.delete("2", "b")
    store.put({"id": "large", "text": "x" * 20_000}, [], [], owner="a")
    assert all(store.get(i, "a") is None for i in ("1", "2", "large"))
