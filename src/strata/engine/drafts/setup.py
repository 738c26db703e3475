"""From settings to drafters: what an engine drafts with, and why."""

from collections.abc import Callable

from strata import log
from strata.config import EngineOptions
from strata.engine.drafts.counts import DraftCounts
from strata.engine.drafts.report import DraftReport
from strata.engine.drafts.speculation import DraftOptions, Speculation
from strata.engine.drafts.topics import Misses
from strata.engine.runner import Runner
from strata.gguf import ModelFile
from strata.models.token_scripts import SCRIPTS, token_scripts


def make_speculation(file: ModelFile, runner: Runner, options: EngineOptions) -> Speculation | None:
    """What proposes drafts; None where nothing does."""
    layer, lookup = runner.following is not None, options.lookup == "on"
    if not options.spec or not (layer or lookup):
        return None
    reduced = runner.following is not None and runner.following.vocabulary is not None
    drafts = DraftOptions(layer, lookup, options.spec, options.spec_min_p, runner.step_rows)
    made = Speculation(drafts, _script_by_id(file), reduced)
    made.ahead = lambda: runner.guessing
    made.verifying = lambda: runner.verifying
    tier = getattr(runner.backend, "tier", None)
    if tier is not None:
        largest = max(tier.blob_bytes)
        made.misses = Misses(lambda: tier.device.missed, lambda: 1e3 * largest / tier.link_rate)
    return made


def _script_by_id(file: ModelFile) -> Callable[[int], str]:
    """A token's script; found out when first asked."""
    found: list[list[str]] = []

    def script(token: int) -> str:
        if not found:
            scripts = token_scripts(file)
            found.append([] if scripts is None else [SCRIPTS[i] for i in scripts.tolist()])
        return found[0][token] if token < len(found[0]) else "all"

    return script


def report(speculation: Speculation | None, runner: Runner, options: EngineOptions) -> DraftReport:
    """Who drafts and why, before anything was drafted."""
    following = runner.following
    if speculation is None:
        why = "--spec is 0" if not options.spec else f"--mtp is {options.mtp} and --lookup is off"
        return DraftReport(("none",), why, options.spec, DraftCounts())
    drafters = tuple(
        n for n, used in (("layer", following is not None), ("lookup", speculation.options.lookup)) if used
    )
    if following is None:
        why = "--mtp is off" if options.mtp == "off" else "the file has no draft layer"
        return DraftReport(drafters, why, options.spec, speculation.counts)
    ids, total = following.layer.options.vocabulary, following.layer.logits.shape[1]
    held = total if ids is None else len(ids)
    why = f"a draft layer is there, its vocabulary {held:,} of {total:,} tokens"
    return DraftReport(drafters, why, options.spec, speculation.counts)


def say(found: DraftReport) -> None:
    """The start-up line."""
    who = " and ".join(found.drafters)
    log.logger(__name__).info("drafts: %s, at most %d at once; %s", who, found.configured, found.why)
