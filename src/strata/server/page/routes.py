"""GET / and the page's files; GET /page/status and /page/settings, which it asks for."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from strata.server.page.files import PAGE_FILES
from strata.server.page.settings import settings_of
from strata.server.page.status import status_of

router = APIRouter(include_in_schema=False)


@router.get("/page/status")
async def status(request: Request) -> dict[str, Any]:
    """What the server does now."""
    return await status_of(request.app.state.service, request.app.state.settings)


@router.get("/page/settings")
async def settings(request: Request) -> dict[str, Any]:
    """What the server was started with."""
    return settings_of(request.app.state.service, request.app.state.settings)


@router.get("/")
@router.get("/page/{_name}")
async def page(request: Request, _name: str = "") -> Response:
    """One of the page's files."""
    file = PAGE_FILES.get(request.url.path)
    if file is None:
        raise HTTPException(404, "Not Found")
    if request.headers.get("if-none-match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, media_type=file.media_type, headers=file.headers)
