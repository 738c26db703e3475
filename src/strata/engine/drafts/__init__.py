"""Drafts: several tokens for one pass. Who proposes them, what they cost, how many are verified (docs/drafts.md)."""

from strata.engine.drafts.counts import DraftCounts
from strata.engine.drafts.layer import DraftLayer
from strata.engine.drafts.report import DraftReport
from strata.engine.drafts.speculation import Speculation

__all__ = ["DraftCounts", "DraftLayer", "DraftReport", "Speculation"]
