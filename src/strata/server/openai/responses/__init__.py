"""The Responses API: stateless, or with the server keeping what was said."""

from strata.server.openai.responses.routes import router

__all__ = ["router"]
