"""A server on a loopback port of its own, in a thread, ended by the test session."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import uvicorn
from tiny import write_tiny_llama

from strata.config import EngineOptions, ServerOptions
from strata.engine import Engine
from strata.gguf import Typed, ValueType
from strata.server import bind, create_app
from strata.text.byte_level import BYTE_TO_CHAR


@contextlib.contextmanager
def running(path, **options):
    """Serves the model file; gives the port, the engine and the service."""
    engine = Engine.load(path, EngineOptions(**options))
    app = create_app(engine, "test-model")
    listener = bind(ServerOptions(port=0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        port = listener.getsockname()[1]
        yield SimpleNamespace(port=port, engine=engine, service=app.state.service, app=app)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.fixture
def serving():
    """`serving(path, **options)`: a server until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda path, **options: stack.enter_context(running(path, **options))


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path):
    with running(smollm2_path, max_model_len=1024, max_num_seqs=2, threads=2) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory):
    """A random model whose tokens are its own 320 ids: fast, and long answers never end by themselves."""
    path = write_tiny_llama(tmp_path_factory.mktemp("server") / "tiny.gguf", **_tokenizer())
    with running(path, max_model_len=1024, max_num_seqs=2, threads=1) as server:
        yield server


def _tokenizer():
    tokens = [BYTE_TO_CHAR[i] for i in range(256)] + [f"<extra{i}>" for i in range(64)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed([1] * 320, ValueType.INT32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": Typed(319, ValueType.UINT32),
    }
