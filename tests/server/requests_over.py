"""Requests without any client library, so that they may be as wrong as they like."""

import asyncio
import http.client
import json
import time

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def ask(server, method, path, body=None, headers=None):
    """(status, headers, body as bytes) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def post(server, path, body, headers=None):
    """(status, JSON) of a POST."""
    status, _, answer = ask(server, "POST", path, body, headers)
    return status, json.loads(answer)


def idle(server, seconds=60):
    """Whether all requests have ended, after a while at most."""
    deadline = time.monotonic() + seconds
    while server.service.engine.num_open and time.monotonic() < deadline:
        time.sleep(0.005)
    return server.service.engine.num_open == 0


def on_engine(server, question):
    """What a function says that is called with the engine, on the engine's own thread."""

    async def asked():
        return await server.service.engine.ask(question)

    return asyncio.run(asked())
