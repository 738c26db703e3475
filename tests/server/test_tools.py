"""Tools with the official clients: forced, streamed, parallel calls; agents that go on until they have an answer."""

import json

import anthropic
import openai
import pytest

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("get_weather", WEATHER), tool("add", ADD)]
SUM = [{"role": "user", "content": "What is 12 plus 30?"}]


@pytest.fixture(scope="module")
def server(smollm2_server):
    return smollm2_server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        yield client


def ask(client, **more):
    asked = {"model": "x", "messages": SUM, "tools": TOOLS, "temperature": 0, "max_tokens": 80}
    return client.chat.completions.create(**{**asked, **more})


def test_a_named_tool_is_called_once_with_arguments_that_fit(client):
    named = {"type": "function", "function": {"name": "add"}}
    choice = ask(client, tool_choice=named).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.function.name == "add" and call.id.startswith("call_")
    assert json.loads(call.function.arguments) == {"a": 12, "b": 30}


def test_a_call_is_required_and_one_alone_where_parallel_ones_are_not_wanted(client):
    choice = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert [c.function.name for c in choice.message.tool_calls] == ["add"]
    assert choice.finish_reason == "tool_calls"


def test_calls_stream_as_they_form(client):
    chunks = list(ask(client, tool_choice="required", stream=True))
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or ()]
    starts = [d for d in deltas if d.id]
    assert len(starts) > 1 and [d.index for d in starts] == list(range(len(starts)))
    first = [d for d in deltas if d.index == 0]
    assert len(first) > 5, "arguments come in pieces"
    assert json.loads("".join(d.function.arguments or "" for d in first)) == {"a": 12, "b": 30}


def test_no_call_where_none_is_wanted(client):
    choice = ask(client, tool_choice="none", max_tokens=30).choices[0]
    assert choice.message.tool_calls is None and choice.message.content


def test_a_choice_among_allowed_tools(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    choice = ask(
        client, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, parallel_tool_calls=False
    ).choices[0]
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")


def functions(name, arguments):
    if name == "add":
        return str(arguments["a"] + arguments["b"])
    return f"Rain in {arguments['city']}."


def test_an_agent_over_openai_goes_from_question_to_answer(client):
    messages, seen = list(SUM), []
    for turn in range(3):
        choice = ask(
            client,
            messages=messages,
            tool_choice="auto" if turn else "required",
            parallel_tool_calls=False,
        ).choices[0]
        messages.append(choice.message.model_dump(exclude_none=True))
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls:
            result = functions(call.function.name, json.loads(call.function.arguments))
            seen.append((call.function.name, result))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert seen == [("add", "42")]
    assert "42" in messages[-1]["content"]


def test_an_agent_over_anthropic_goes_from_question_to_answer(server):
    tools = [{"name": "add", "description": "add", "input_schema": ADD}]
    messages, results = list(SUM), []
    url = f"http://127.0.0.1:{server.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        for turn in range(3):
            kind = "auto" if turn else "any"
            with client.messages.stream(
                model="x",
                max_tokens=80,
                messages=messages,
                tools=tools,
                tool_choice={"type": kind, "disable_parallel_tool_use": True},
                extra_body={"temperature": 0},
            ) as stream:
                answer = stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason != "tool_use":
                break
            blocks = [block for block in answer.content if block.type == "tool_use"]
            results += [functions(block.name, block.input) for block in blocks]
            messages.append(
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": block.id, "content": result}
                        for block, result in zip(blocks, results, strict=True)
                    ],
                }
            )
    assert results == ["42"]
    assert "42" in answer.content[0].text


def test_an_agent_over_stored_responses(client):
    tools = [{"type": "function", "name": "add", "parameters": ADD}]
    asked = {"model": "x", "tools": tools, "temperature": 0, "max_output_tokens": 80}
    first = client.responses.create(
        input=SUM[0]["content"], tool_choice="required", parallel_tool_calls=False, **asked
    )
    [call] = first.output
    assert call.type == "function_call" and call.status == "completed"
    result = functions(call.name, json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    second = client.responses.create(input=[output], previous_response_id=first.id, **asked)
    assert "42" in second.output_text
    assert second.usage.input_tokens_details.cached_tokens > 0, "what was read and written is not read again"
