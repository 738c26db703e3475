"""Errors in OpenAI's shape: {"error": {message, type, param, code}}."""

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from strata.errors import ContextLengthError, FaultError, StrataError


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def strata_error(error: StrataError) -> tuple[int, dict[str, Any]]:
    """Status and body of our own errors."""
    if isinstance(error, FaultError):
        return 500, error_body(str(error), "server_error")
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return 400, error_body(str(error), "invalid_request_error", code=code)


async def on_strata_error(_: Request, error: Exception) -> JSONResponse:
    """Handler for StrataError."""
    assert isinstance(error, StrataError)
    status, body = strata_error(error)
    return JSONResponse(body, status)


async def on_invalid(_: Request, error: Exception) -> JSONResponse:
    """Handler for bodies that do not parse or do not validate: the first complaint, by field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return JSONResponse(error_body("the body is not valid JSON", "invalid_request_error"), 400)
    param = ".".join(where) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    text = f"{param}: {message}" if param else message
    return JSONResponse(error_body(text, "invalid_request_error", param), 400)


async def on_http(_: Request, error: Exception) -> JSONResponse:
    """Handler for unknown paths, wrong methods, refusals."""
    assert isinstance(error, HTTPException)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return JSONResponse(error_body(str(error.detail), kind), error.status_code, error.headers)


async def on_surprise(_: Request, _error: Exception) -> JSONResponse:
    """Handler for what nobody foresaw; the traceback is the log's."""
    return JSONResponse(error_body("the server failed; its log says why", "server_error"), 500)
