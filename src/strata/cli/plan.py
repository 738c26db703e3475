"""`strata plan`."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.options import (
    Json,
    Model,
    engine_options,
    taking,
)
from strata.cli.output import print_json

DraftFile = typer.Option(
    "--mtp-model", metavar="FILE", help="GGUF file of the draft layer, if it is another."
)
WithDraft = typer.Option("--mtp", help="Plan for the model's own draft layer too.")


@taking(
    "vram_limit_gib", "ram_limit_gib", "link_limit_gbps", "vram_reserve_mib", "expert_cache", "ram_budget_gib", "kv",
    "kv_resident", "max_model_len", "max_num_seqs", "ngram_table", "prefill", "threads", before="as_json",
)  # fmt: skip
def plan(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    mtp: Annotated[bool, WithDraft] = False,
    mtp_model: Annotated[Path | None, DraftFile] = None,
    as_json: Json = False,
) -> None:
    """Say where everything would lie, on this machine or on one of the sizes given; reads the file's header only."""
    options = engine_options(context.params)

    from strata.engine.planning import plan_file
    from strata.memory.plan_text import lines, to_json

    placement = plan_file(model, options, mtp_model or (model if mtp else None))
    if as_json:
        print_json(to_json(placement))
    else:
        print("\n".join(lines(placement)))
