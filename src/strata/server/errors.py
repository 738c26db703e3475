"""Errors in the shapes that OpenAI's and Anthropic's clients read, by the path that was asked."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from strata.errors import (
    BusyError,
    ContextLengthError,
    DeviceError,
    FaultError,
    MemoryLimitError,
    ModelFileError,
    StrataError,
)
from strata.server.request_log import log_refusal

ANTHROPIC_PATH = "/v1/messages"

# Anthropic's names (docs.anthropic.com, "Errors"), and OpenAI's, by status.
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """{"error": {message, type, param, code}}."""
    kind = _OPENAI.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """{"type": "error", "error": {type, message}}."""
    kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_body(
    path: str, status: int, message: str, param: str | None = None, code: str | None = None
) -> Any:
    """The body of an answer on `path`."""
    if path.startswith(ANTHROPIC_PATH):
        return anthropic_error(status, message)
    return openai_error(status, message, param, code)


def strata_status(error: StrataError) -> tuple[int, str | None]:
    """Status and code of our own errors."""
    if isinstance(error, BusyError):
        return 429, None
    if isinstance(error, DeviceError | MemoryLimitError):
        return 503, None
    if isinstance(error, FaultError | ModelFileError):
        return 500, None
    return 400, "context_length_exceeded" if isinstance(error, ContextLengthError) else None


# What every endpoint may answer beside its own, for the OpenAPI document.
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be served; the body says why."},
    "5XX": {"description": "The server failed."},
}
# Endpoints that stream on demand.
STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Whole, or as events where `stream` is set.", "content": {"text/event-stream": {}}}
}


def note_refusal(scope: Scope, status: int, message: str) -> None:
    """A request that is not served, in the log and the metrics."""
    log_refusal(scope["path"], status, message)
    scope["app"].state.service.metrics.refused.labels(str(status)).inc()


async def on_strata_error(request: Request, error: Exception) -> JSONResponse:
    """Handler for StrataError."""
    assert isinstance(error, StrataError)
    status, code = strata_status(error)
    headers = {"Retry-After": "1" if status == 429 else "30"} if status in (429, 503) else None
    return _answer(request, status, str(error), code=code, headers=headers)


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    """Handler for bodies that do not parse or do not validate: the first complaint, by field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return _answer(request, 400, "the body is not valid JSON")
    param = ".".join(where) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    if not where and "json" not in request.headers.get("content-type", "") and request.method == "POST":
        message = "the body must be JSON, sent with 'Content-Type: application/json'"
    return _answer(request, 400, f"{param}: {message}" if param else message, param)


async def on_http(request: Request, error: Exception) -> JSONResponse:
    """Handler for unknown paths, wrong methods, refusals."""
    assert isinstance(error, HTTPException)
    return _answer(request, error.status_code, str(error.detail), headers=error.headers)


async def on_surprise(request: Request, _error: Exception) -> JSONResponse:
    """Handler for what nobody foresaw; the traceback is the log's."""
    return _answer(request, 500, "the server failed; its log says why")


def _answer(
    request: Request,
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    note_refusal(request.scope, status, message)
    return JSONResponse(error_body(request.url.path, status, message, param, code), status, headers)
