"""`strata plan`."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.options import (
    Json,
    Kv,
    MaxContext,
    Model,
    Prefill,
    Threads,
    engine_options,
    flag,
)
from strata.cli.output import print_json

DraftFile = typer.Option(
    "--mtp-model", metavar="FILE", help="GGUF file of the draft layer, if it is another."
)
WithDraft = typer.Option("--mtp", help="Plan for the model's own draft layer too.")


def plan(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    mtp: Annotated[bool, WithDraft] = False,
    mtp_model: Annotated[Path | None, DraftFile] = None,
    vram_limit_gib: Annotated[str | None, flag("vram_limit_gib")] = None,
    ram_limit_gib: Annotated[str | None, flag("ram_limit_gib")] = None,
    link_limit_gbps: Annotated[str | None, flag("link_limit_gbps")] = None,
    vram_reserve_mib: Annotated[str | None, flag("vram_reserve_mib")] = None,
    expert_cache: Annotated[str | None, flag("expert_cache")] = None,
    ram_budget_gib: Annotated[str | None, flag("ram_budget_gib")] = None,
    kv: Kv = None,
    kv_resident: Annotated[str | None, flag("kv_resident")] = None,
    max_model_len: MaxContext = None,
    max_num_seqs: Annotated[str | None, flag("max_num_seqs")] = None,
    prefill: Prefill = None,
    threads: Threads = None,
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
