"""Every setting with its default, in one place: frozen dataclasses whose fields carry their names and limits.

A setting of the engine comes from its flag, else from `STRATA_<KEY>`, else from the default here; `resolve`
is the place for a configuration file. What one request asks for has flags only. `OPTIONS` is the table that
the command line and its help are made from.
"""

from strata.config.engine import EngineOptions
from strata.config.option import Option, Settings
from strata.config.sampling import SamplingOptions
from strata.config.serving import ServerOptions, ServingOptions

__all__ = [
    "OPTIONS", "SETTINGS", "EngineOptions", "Option", "SamplingOptions", "ServerOptions",
    "ServingOptions", "Settings",
]  # fmt: skip

SETTINGS = (ServerOptions, EngineOptions, ServingOptions)  # what a configuration file may set
OPTIONS: dict[str, Option] = {
    o.name: o
    for cls in (EngineOptions, SamplingOptions, ServingOptions, ServerOptions)
    for o in cls.options()
}
