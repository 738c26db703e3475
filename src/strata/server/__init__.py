"""HTTP server: OpenAI's and Anthropic's protocols over one engine thread."""

from strata.server.app import create_app
from strata.server.process import bind, check_access, read_keys, run, server_config

__all__ = ["bind", "check_access", "create_app", "read_keys", "run", "server_config"]
