"""What drafts, and how it fares, in words and numbers. Three numbers are never mixed up: what is configured, the widest
chain that was verified, and how many drafts of a chain were accepted in the mean."""

from dataclasses import dataclass

from strata import log
from strata.engine.drafts.counts import DraftCounts

_LOG_EVERY = 500  # chains
_NEVER = 96  # first drafts in one script without one that was right, after which it is worth a warning
_logger = log.logger(__name__)


@dataclass(frozen=True)
class DraftReport:
    """`drafters`: layer, lookup, or none; `why` says what decided it."""

    drafters: tuple[str, ...]
    why: str
    configured: int
    counts: DraftCounts


def summary(configured: int, counts: DraftCounts) -> str:
    """One line."""
    places = ", ".join(
        f"{counts.accepted_at[p] / counts.proposed_at[p]:.0%}" for p in sorted(counts.proposed_at)
    )
    scripts = ", ".join(
        f"{s} {counts.accepted_in[s] / n:.0%} of {n}" for s, n in counts.proposed_in.most_common(4)
    )
    return (
        f"drafts: {configured} configured, widest {counts.widest}, mean accepted {counts.mean_accepted:.2f}; "
        f"accepted by place {places}; first drafts by script: {scripts}"
    )


class Teller:
    """Writes to the log now and then, and a warning once for each script whose drafts are never right."""

    def __init__(self, configured: int, reduced: bool):
        self._configured, self._reduced = configured, reduced
        self._told = 0
        self._warned: set[str] = set()

    def tell(self, counts: DraftCounts) -> None:
        """After a step."""
        if counts.windows - self._told >= _LOG_EVERY:
            self._told = counts.windows
            _logger.info("%s", summary(self._configured, counts))
        for script, proposed in counts.proposed_in.items():
            if proposed >= _NEVER and not counts.accepted_in[script] and script not in self._warned:
                self._warned.add(script)
                hint = (
                    f"; the draft vocabulary may lack it: strata draft-vocab build --add {script}, or "
                    "--draft-vocab full"
                    if self._reduced
                    else ""
                )
                _logger.warning("none of %d drafts was right where the text is %s%s", proposed, script, hint)
