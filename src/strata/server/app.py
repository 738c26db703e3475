"""The application: lifespan, routes, limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from strata import __version__
from strata.config import ServerOptions, Settings
from strata.engine import Engine
from strata.errors import StrataError
from strata.server import anthropic, openai, page
from strata.server.engine_thread import EngineThread
from strata.server.errors import RESPONSES, on_http, on_invalid, on_strata_error, on_surprise
from strata.server.guard import Access, Guard
from strata.server.limits import BodyLimit, HeadAsGet
from strata.server.openai.responses.store import ResponseStore
from strata.server.service import Service
from strata.server.watchdog import watch

probes = APIRouter()
ROUTERS = (openai.router, anthropic.router, page.router, probes)


def create_app(
    engine: Engine,
    model_id: str,
    on_ready: Callable[[], None] | None = None,
    *,
    options: ServerOptions | None = None,
    keys: Sequence[str] = (),
    reload: Callable[[], Engine] | None = None,
    settings: Sequence[Settings] = (),
) -> FastAPI:
    """An application around a loaded engine; its lifespan starts and stops the engine thread. `reload` makes the engine
    anew after it left memory (`idle_unload`); `settings` are those that the page shows."""
    options = options or ServerOptions()
    access = Access.of(options, keys)
    service = Service.of(EngineThread(engine, reload, options.idle_unload), model_id, options)
    # pages about the API would load scripts from elsewhere; the document itself is there
    started = _lifespan(service, on_ready)
    app = FastAPI(title="Strata", version=__version__, lifespan=started, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.settings = tuple(settings) or (options,)
    app.state.responses = ResponseStore()
    for router in ROUTERS:
        app.include_router(router, responses=RESPONSES)
    app.add_exception_handler(StrataError, on_strata_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_surprise)
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, max_bytes=options.max_body_mib << 20)
    app.add_middleware(Guard, access=access)
    if access.origins:  # outside of the guard, so that refusals can be read as well
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
        )
    return app


def _lifespan(
    service: Service, on_ready: Callable[[], None] | None
) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        seconds = service.options.step_timeout
        watchdog = asyncio.ensure_future(watch(service.engine, seconds)) if seconds else None
        if on_ready is not None:
            on_ready()
        try:
            yield
        finally:
            if watchdog is not None:
                watchdog.cancel()
            await asyncio.to_thread(service.engine.stop)

    return lifespan


@probes.get("/health")
async def health(request: Request) -> JSONResponse:
    """200 while requests can be served, as far as is known."""
    engine = request.app.state.service.engine
    if engine.alive:
        return JSONResponse({"status": "ok"})
    return JSONResponse(
        {"status": "failed", **({"error": str(engine.trouble)} if engine.trouble else {})}, 503
    )


@probes.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    text = await request.app.state.service.measured()
    return Response(text, media_type="text/plain; version=0.0.4")
