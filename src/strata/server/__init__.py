"""HTTP server: OpenAI's protocol over one engine thread."""

from strata.server.app import ServerOptions, create_app, serve

__all__ = ["ServerOptions", "create_app", "serve"]
