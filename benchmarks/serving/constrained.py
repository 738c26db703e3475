"""Counts answers that fit their schema: content, calls, and either, at temperature 1, over HTTP on loopback.

usage: constrained.py [--model FILE] [--runs N] [--parallel N]
"""

import argparse
import http.client
import json
import threading
import time
from pathlib import Path

import jsonschema_rs
import uvicorn

from strata.config import EngineOptions, ServerOptions
from strata.engine import Engine
from strata.server import bind, create_app, server_config

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "address": {"$ref": "#/$defs/address"},
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        }
    },
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER},
    }
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
ASK = [{"role": "user", "content": "Tell me about Ada who lives in Paris, and the weather there."}]
KINDS = {
    "schema": {"response_format": FORMAT},
    "required call": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "schema or call": {"tools": TOOLS, "parallel_tool_calls": False, "response_format": FORMAT},
}
is_person = jsonschema_rs.validator_for(PERSON).is_valid
is_weather = jsonschema_rs.validator_for(WEATHER).is_valid


def fits(choice: dict) -> bool:
    """Whether an answer is what was asked for."""
    calls = choice["message"].get("tool_calls")
    try:
        if calls:
            return all(is_weather(json.loads(call["function"]["arguments"])) for call in calls)
        return is_person(json.loads(choice["message"]["content"]))
    except ValueError:
        return False


def post(port: int, body: dict) -> dict:
    """The answer to a chat request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=8)
    given = parser.parse_args()
    engine = Engine.load(given.model, EngineOptions(max_model_len=2048, max_num_seqs=given.parallel))
    settings = ServerOptions(port=0)
    listener = bind(settings)
    server = uvicorn.Server(server_config(create_app(engine, "model"), settings))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    port, found = listener.getsockname()[1], {}
    for name, fields in KINDS.items():
        choices = []
        for seed in range(0, given.runs, 10):
            body = {
                "messages": ASK,
                "temperature": 1,
                "seed": seed,
                "n": min(10, given.runs),
                "max_tokens": 400,
            }
            choices += post(port, {**body, **fields})["choices"]
        called = sum(bool(c["message"].get("tool_calls")) for c in choices)
        found[name] = {"runs": len(choices), "valid": sum(map(fits, choices)), "calls": called}
    server.should_exit = True
    print(json.dumps({"model": given.model.name, "temperature": 1, **found}))


if __name__ == "__main__":
    main()
