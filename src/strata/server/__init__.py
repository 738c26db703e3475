"""HTTP server: OpenAI's protocol over one engine thread."""

from strata.server.app import bind, create_app, run

__all__ = ["bind", "create_app", "run"]
