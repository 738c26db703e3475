"""OpenAI's endpoints, under /v1."""

from fastapi import APIRouter

from strata.server.openai import chat, completions, embeddings, models, responses

router = APIRouter(prefix="/v1")
for part in (models, completions, chat, embeddings, responses):
    router.include_router(part.router)

__all__ = ["router"]
