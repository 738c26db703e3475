"""The process around the application: its socket, its keys, its end."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from strata import log
from strata.config import ServerOptions, Settings
from strata.engine import Engine
from strata.errors import UsageError
from strata.server.app import create_app
from strata.server.guard import Access
from strata.server.silence import protocol


def read_keys(options: ServerOptions) -> list[str]:
    """Keys of the settings and of the file they name; UsageError where that cannot be read or holds none."""
    keys = [key.strip() for key in options.api_key.split(",") if key.strip()]
    if options.api_key_file:
        path = Path(options.api_key_file)
        try:
            found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {path}: {getattr(error, 'strerror', None) or error}") from None
        if not found:
            raise UsageError(f"--api-key-file {path} holds no key")
        keys += found
    return keys


def check_access(options: ServerOptions) -> None:
    """UsageError, before the model is loaded, where the server would not start."""
    Access.of(options, read_keys(options))


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket, before the model is loaded; UsageError when the port is taken."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}; choose another with --port"
        ) from None
    return listener


def run(
    engine: Engine,
    options: ServerOptions,
    listener: socket.socket,
    on_ready: Callable[[], None] | None = None,
    reload: Callable[[], Engine] | None = None,
    settings: Sequence[Settings] = (),
) -> None:
    """Serves until interrupted; `on_ready` is called when requests are taken. On an interrupt no more are taken, and
    answers that run get `shutdown_timeout` seconds to end."""
    model_id = options.model_id or Path(engine.model_file.path).stem
    app = create_app(
        engine,
        model_id,
        on_ready,
        options=options,
        keys=read_keys(options),
        reload=reload,
        settings=settings,
    )
    del engine  # the engine thread may let it go
    uvicorn.Server(server_config(app, options)).run(sockets=[listener])


def server_config(app: object, options: ServerOptions, log_level: str = "warning") -> uvicorn.Config:
    """uvicorn's settings; what it says goes to our log."""
    log.adopt("uvicorn")
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application
        http=protocol(options.client_timeout),
        log_config=None,
        log_level=log_level,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(options.shutdown_timeout)),
        server_header=False,
        # a proxy in front may be trusted with nothing: addresses are those of the connections
        proxy_headers=False,
    )
