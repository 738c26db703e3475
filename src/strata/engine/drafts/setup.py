"""From settings to drafters: what an engine drafts with."""

from strata.config import EngineOptions
from strata.engine.drafts.layer import LayerOptions
from strata.engine.drafts.speculation import DraftOptions
from strata.engine.runner import Runner
from strata.gguf import ModelFile
from strata.models import Model


def layer_options(file: ModelFile, model: Model, options: EngineOptions) -> LayerOptions:
    """How the draft layer is built."""
    return LayerOptions(options.mtp_window)


def draft_options(runner: Runner, options: EngineOptions) -> DraftOptions | None:
    """What drafts there may be; None where there are none."""
    layer, lookup = runner.following is not None, options.lookup == "on"
    if not options.spec or not (layer or lookup):
        return None
    return DraftOptions(layer, lookup, options.spec, options.spec_min_p)
