"""POST /v1/embeddings: the features of a text's tokens, pooled (docs/serving.md)."""

import asyncio
import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import Field

from strata.engine import Pooling, SamplingParams
from strata.errors import UsageError
from strata.server.body import Body
from strata.server.call import Call, Wishes
from strata.server.service import Service, client_of

MAX_INPUTS = 2048
router = APIRouter()


class EmbeddingRequest(Body):
    """One text or several, as text or as token ids."""

    input: str | list[int] | list[str] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each text."""
        if isinstance(self.input, list) and self.input and not isinstance(self.input[0], int):
            return list(self.input)
        return [self.input]  # type: ignore[list-item]  # text, or a list of ids


@router.post("/embeddings", response_model=None)
async def embeddings(body: EmbeddingRequest, request: Request) -> dict[str, Any]:
    """A vector of length 1 for each text."""
    service: Service = request.app.state.service
    width = body.dimensions or service.embedding_width
    if width > service.embedding_width:
        raise UsageError(f"dimensions is {width}; this model gives {service.embedding_width}")
    if len(body.inputs) > MAX_INPUTS:
        raise UsageError(f"{len(body.inputs)} inputs; at most {MAX_INPUTS} are taken")
    calls = await asyncio.to_thread(_calls, service, body, client_of(request))
    generations = service.generations(calls)
    async for _ in service.pieces(generations, request.url.path, "embeddings", request):
        pass
    vectors = [call.pooling.vector()[:width] for call in calls if call.pooling is not None]
    count = sum(g.num_prompt_tokens for g in generations)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": i,
                "embedding": _encoded(vector, body.encoding_format == "base64"),
            }
            for i, vector in enumerate(vectors)
        ],
        "model": service.model_id,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def _calls(service: Service, body: EmbeddingRequest, client: str) -> list[Call]:
    calls = []
    for text in body.inputs:
        service.fits(len(text) if isinstance(text, str) else 0)
        tokens = service.tokenizer.encode(text) if isinstance(text, str) else text
        service.room(tokens)
        # the one token that a request generates is left aside
        wishes = Wishes(SamplingParams(max_tokens=1), client=client)
        calls.append(Call(tokens, wishes, pooling=Pooling(service.pooling)))
    return calls


def _encoded(vector: NDArray[np.float32], as_base64: bool) -> list[float] | str:
    """Shortened vectors are made length 1 again."""
    unit = (vector / np.linalg.norm(vector)).astype("<f4")
    return base64.b64encode(unit.tobytes()).decode() if as_base64 else unit.tolist()
