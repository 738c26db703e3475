"""`strata plan`."""

import typer

from strata.cli.options import (
    DRAFTS,
    Json,
    Model,
    engine_options,
    taking,
)
from strata.cli.output import print_json


@taking(
    "vram_limit_gib", "ram_limit_gib", "link_limit_gbps", "vram_reserve_mib", "expert_cache", "ram_budget_gib", "kv",
    "kv_prefetch", "kv_resident", "max_model_len", "max_num_seqs", "ngram_table", "prefill", "threads", *DRAFTS,
    before="as_json",
)  # fmt: skip
def plan(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    as_json: Json = False,
) -> None:
    """Say where everything would lie, on this machine or on one of the sizes given; reads the file's header only."""
    options = engine_options(context.params)

    from strata.engine.planning import plan_file
    from strata.memory.plan_text import lines, to_json

    placement = plan_file(model, options)
    if as_json:
        print_json(to_json(placement))
    else:
        print("\n".join(lines(placement)))
