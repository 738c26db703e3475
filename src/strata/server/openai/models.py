"""GET /v1/models."""

import time
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from strata.server.service import Service

router = APIRouter()


def model_card(service: Service) -> dict[str, Any]:
    """The entry of the one model; `type`, `display_name` and `created_at` are what Anthropic's clients read."""
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "strata",
        "max_model_len": service.max_model_len,
        "type": "model",
        "display_name": service.model_id,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(service.created)),
    }


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that is loaded."""
    card = model_card(request.app.state.service)
    page = {"has_more": False, "first_id": card["id"], "last_id": card["id"]}
    return {"object": "list", "data": [card], **page}


@router.get("/models/{model_id:path}")
async def model(model_id: str, request: Request) -> dict[str, Any]:
    """The model by its name."""
    card = model_card(request.app.state.service)
    if model_id != card["id"]:
        raise HTTPException(404, f"there is no model {model_id!r}; this server has {card['id']!r}")
    return card
