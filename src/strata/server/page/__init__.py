"""The page at `/`: chat, live monitor, settings; files of this package, and what they ask for."""

from strata.server.page.files import PATHS
from strata.server.page.routes import router

__all__ = ["PATHS", "router"]
