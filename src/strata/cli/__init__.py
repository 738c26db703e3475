"""The command `strata`. Command bodies import what they need when they run, so that help comes at once."""

from strata.cli.main import main

__all__ = ["main"]
