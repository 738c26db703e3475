"""The application and the process around it: lifespan, routes, limits."""

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from strata import __version__
from strata.config import ServerOptions
from strata.engine import Engine
from strata.errors import StrataError, UsageError
from strata.server import openai
from strata.server.engine_thread import EngineThread
from strata.server.errors import on_http, on_invalid, on_strata_error, on_surprise
from strata.server.limits import BodyLimit
from strata.server.service import Service
from strata.server.tier_metrics import TierCollector
from strata.text import Tokenizer
from strata.text.chat import ChatTemplate
from strata.text.chat.template import KEY as CHAT_TEMPLATE_KEY

MAX_BODY_BYTES = 16 << 20


def create_app(engine: Engine, model_id: str, on_ready: Callable[[], None] | None = None) -> FastAPI:
    """An application around a loaded engine; its lifespan starts and stops the engine thread."""
    metadata = engine.model_file.metadata
    service = Service(
        EngineThread(engine),
        Tokenizer.from_metadata(metadata),
        ChatTemplate.from_metadata(metadata) if CHAT_TEMPLATE_KEY in metadata else None,
        model_id,
    )

    service.metrics.registry.register(TierCollector(engine.tier_counts, engine.placement))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        if on_ready is not None:
            on_ready()
        try:
            yield
        finally:
            service.engine.stop()

    app = FastAPI(title="Strata", version=__version__, lifespan=lifespan)
    app.state.service = service
    app.include_router(openai.router)
    app.add_exception_handler(StrataError, on_strata_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_surprise)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    _add_probes(app, service)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while requests can be served."""
        alive = service.engine.alive
        return JSONResponse({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        service.metrics.running.set(service.engine.num_running)
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket, before the model is loaded; UsageError when the port is taken."""
    listener = socket.socket()
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
) -> None:
    """Serves until interrupted; `on_ready` is called when requests are taken."""
    model_id = options.model_id or Path(engine.model_file.path).stem
    app = create_app(engine, model_id, on_ready)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])
