"""The same token ids through `run` (raw and with --chat), `chat` and the server: the same prompt, answer and logits."""

import contextlib
import hashlib
import io
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openai
import pytest

from strata.cli import main
from strata.engine import Engine
from strata.gguf import open_model
from strata.text import Tokenizer
from strata.text.chat import ChatTemplate, encode_chat

QUESTION = "Name three rivers of Europe."
MAX_TOKENS = 12


class Stdin:
    def __init__(self, text):
        self.buffer = io.BytesIO(text.encode())

    def isatty(self):
        return False


@dataclass
class Seen:
    """What went through an engine."""

    engines: list = field(default_factory=list)
    requests: list = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch, smollm2_path):
    """Every request that an engine with this model takes; other tests' servers may still have one of theirs."""
    found, add = Seen(), Engine.add

    def noted(self, *arguments, **named):
        request = add(self, *arguments, **named)
        if Path(self.model_file.path) == smollm2_path:
            found.engines.append(self)
            found.requests.append(request)
        return request

    monkeypatch.setattr(Engine, "add", noted)
    return found


def command(monkeypatch, *arguments, stdin=""):
    monkeypatch.setattr(sys, "stdin", Stdin(stdin))
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()):
        main([str(argument) for argument in arguments])
    assert not ended.value.code


def ask_server(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        client.chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
    while server.service.engine.num_open or server.engine.has_work:
        time.sleep(0.01)


def digest_of(engine, request):
    """SHA-256 of the logits that chose each generated token, from the engine that generated it."""
    ids, prompt = [*request.prompt_token_ids, *request.output_token_ids], len(request.prompt_token_ids)
    rows = np.concatenate([np.array(piece) for piece in engine.logits(ids)])[prompt - 1 : -1]
    assert rows.argmax(axis=1).tolist() == request.output_token_ids
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


def test_run_chat_and_the_server_compute_the_same(seen, smollm2_server, smollm2_path, monkeypatch):
    metadata = open_model(smollm2_path).metadata
    messages = [{"role": "user", "content": QUESTION}]
    prompt = encode_chat(Tokenizer.from_metadata(metadata), ChatTemplate.from_metadata(metadata), messages)
    base = ("--model", smollm2_path, "--max-tokens", MAX_TOKENS, "--max-context", 1024)
    command(monkeypatch, "run", *base, "--json", "-", stdin=prompt.text)
    command(monkeypatch, "run", *base, "--json", "--chat", QUESTION)
    command(monkeypatch, "chat", *base, stdin=QUESTION + "\n")
    ask_server(smollm2_server)
    assert len({id(engine) for engine in seen.engines}) == len(seen.requests) == 4
    assert [list(request.prompt_token_ids) for request in seen.requests] == [prompt.token_ids] * 4
    answers = [request.output_token_ids for request in seen.requests]
    assert len(answers[0]) == MAX_TOKENS and answers == [answers[0]] * 4
    digests = [digest_of(*pair) for pair in zip(seen.engines, seen.requests, strict=True)]
    assert digests == [digests[0]] * 4


def test_another_question_has_another_digest(seen, smollm2_path, monkeypatch):
    """A planted difference: the digest sees one character of the prompt."""
    base = ("run", "--model", smollm2_path, "--max-tokens", 3, "--max-context", 256, "--chat")
    for question in (QUESTION, QUESTION[:-1]):
        command(monkeypatch, *base, question)
    first, second = (digest_of(*pair) for pair in zip(seen.engines, seen.requests, strict=True))
    assert first != second
