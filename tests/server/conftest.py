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
from strata.server import bind, create_app, server_config
from strata.text.byte_level import BYTE_TO_CHAR


@contextlib.contextmanager
def running(path, server_options=None, keys=(), reload=False, load=None, **options):
    """Serves the model file, or what `load` makes; gives the port, the engine and the service."""
    settings = ServerOptions(**{"port": 0, "shutdown_timeout": 2, **(server_options or {})})
    load = load or (lambda: Engine.load(path, EngineOptions(**options)))
    engine = load()
    app = create_app(engine, "test-model", options=settings, keys=keys, reload=load if reload else None)
    listener = bind(ServerOptions(port=0))
    server = uvicorn.Server(server_config(app, settings, "error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        port = listener.getsockname()[1]
        yield SimpleNamespace(port=port, engine=engine, service=app.state.service, app=app, server=server)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture
def serving():
    """`serving(path, **options)`: a server until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda path, **options: stack.enter_context(running(path, **options))


@pytest.fixture(scope="module")
def serving_module():
    """As `serving`, until the module ends."""
    with contextlib.ExitStack() as stack:
        yield lambda path, **options: stack.enter_context(running(path, **options))


@pytest.fixture(scope="session")
def tokenizer_metadata():
    """The tokenizer of the tiny model: a token a byte, and a few more."""
    return _tokenizer()


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path):
    with running(smollm2_path, max_model_len=1024, max_num_seqs=2, threads=2) as server:
        yield server


@pytest.fixture(scope="session")
def write_tiny():
    """Writes a random model whose tokens are its own 320 ids; takes more metadata."""
    return lambda path, **more: write_tiny_llama(path, **_tokenizer(), **more)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory, write_tiny):
    return write_tiny(tmp_path_factory.mktemp("server") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_server(tiny_path):
    """It is fast, and long answers never end by themselves."""
    with running(tiny_path, max_model_len=1024, max_num_seqs=2, threads=1) as server:
        yield server


@pytest.fixture(scope="session")
def thinker_server(tmp_path_factory):
    """A random model with a template that opens a think block and writes calls in the XML style."""
    path = write_tiny_llama(
        tmp_path_factory.mktemp("thinker") / "thinker.gguf", **_tokenizer(CONTROL, THINKER)
    )
    with running(path, max_model_len=1024, max_num_seqs=8, threads=1) as server:
        yield server


CONTROL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
THINKER = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{# calls: <tool_call> <function=NAME> <parameter=KEY> #}"""


def _tokenizer(control=(), template=None):
    tokens = [BYTE_TO_CHAR[i] for i in range(256)] + [f"<extra{i}>" for i in range(64)]
    types = [1] * 320
    for i, text in enumerate(control):
        tokens[256 + i], types[256 + i] = text, 3
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed(types, ValueType.INT32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": Typed(257 if control else 319, ValueType.UINT32),
    }
    return found | ({"tokenizer.chat_template": template} if template else {})
