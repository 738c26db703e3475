"""Anthropic's endpoints, under /v1."""

from fastapi import APIRouter

from strata.server.anthropic import messages

router = APIRouter(prefix="/v1")
router.include_router(messages.router)

__all__ = ["router"]
