"""`strata serve` and `strata config show`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from strata import env, log
from strata.cli.options import (
    COMPUTE,
    DRAFTS,
    MEMORY,
    check_variables,
    flag,
    taking,
)
from strata.config import SETTINGS, EngineOptions, ServerOptions, ServingOptions
from strata.config.file import WITHOUT_EFFECT, check_conflicts, read_config
from strata.errors import UsageError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="strata.toml with settings.")
]


@taking(*COMPUTE, "max_model_len", "prefill", *MEMORY, *DRAFTS, before="prompt_share")
def serve(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    config: ConfigFile = None,
    model: Annotated[str | None, flag("model")] = None,
    model_id: Annotated[str | None, flag("model_id")] = None,
    host: Annotated[str | None, flag("host")] = None,
    port: Annotated[str | None, flag("port")] = None,
    api_key: Annotated[str | None, flag("api_key")] = None,
    api_key_file: Annotated[str | None, flag("api_key_file")] = None,
    allowed_hosts: Annotated[str | None, flag("allowed_hosts")] = None,
    cors_origins: Annotated[str | None, flag("cors_origins")] = None,
    heartbeat: Annotated[str | None, flag("heartbeat")] = None,
    client_timeout: Annotated[str | None, flag("client_timeout")] = None,
    shutdown_timeout: Annotated[str | None, flag("shutdown_timeout")] = None,
    step_timeout: Annotated[str | None, flag("step_timeout")] = None,
    idle_unload: Annotated[str | None, flag("idle_unload")] = None,
    max_body_mib: Annotated[str | None, flag("max_body_mib")] = None,
    repetition_limit: Annotated[str | None, flag("repetition_limit")] = None,
    log_json: Annotated[bool | None, flag("log_json")] = None,
    parallel: Annotated[str | None, flag("max_num_seqs")] = None,
    prompt_share: Annotated[str | None, flag("prompt_share")] = None,
    max_queue: Annotated[str | None, flag("max_queue")] = None,
    max_per_key: Annotated[str | None, flag("max_per_key")] = None,
    conversation_cache_mib: Annotated[str | None, flag("conversation_cache_mib")] = None,
    prompt_cache_every: Annotated[str | None, flag("prompt_cache_every")] = None,
    session_dir: Annotated[str | None, flag("session_dir")] = None,
    session_mib: Annotated[str | None, flag("session_mib")] = None,
) -> None:
    """Serve a model over OpenAI's and Anthropic's protocols until interrupted."""
    given = {**context.params, "max_num_seqs": parallel}
    values = read_config(config) if config else {}
    variables = env.settings()
    check_variables(variables)
    if config:
        check_conflicts(given, config, values)
    server = ServerOptions.resolve(given, variables, values)
    engine_options = EngineOptions.resolve(given, variables, values)
    serving = ServingOptions.resolve(given, variables, values)
    if not server.model:
        raise UsageError("no model: give --model FILE, or [model] path in the file named by --config")
    _set_up_log(server)
    for key in sorted(set(values) & set(WITHOUT_EFFECT)):
        log.tell(f"{key} has no effect: {WITHOUT_EFFECT[key]}")

    _run(server, engine_options, serving)


def _run(server: ServerOptions, engine_options: EngineOptions, serving: ServingOptions) -> None:
    from strata.cli.progress import ReadProgress
    from strata.engine import Engine
    from strata.server import bind, check_access, run

    check_access(server)
    listener = bind(server)
    log.logger("strata.cli").info("loading %s", server.model)

    def load() -> Engine:
        return Engine.load(server.model, engine_options, serving=serving, progress=ReadProgress())

    address, chosen = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    run(
        load(),
        server,
        listener,
        lambda: log.tell(f"serving on http://{shown}:{chosen}"),
        reload=load,
        settings=(server, engine_options, serving),
    )


def _set_up_log(server: ServerOptions) -> None:
    """A line a request, unless STRATA_LOG says how much is wanted."""
    if server.log_json:
        log.use_json()
    if not env.is_set("STRATA_LOG"):
        log.logger("strata.requests").setLevel("INFO")


config_app = typer.Typer(help="Settings: their values and where they come from.", no_args_is_help=False)


@config_app.command()
def show(config: ConfigFile = None) -> None:
    """Print every setting: value, where it comes from, key, flag, and what it does."""
    values = read_config(config) if config else {}
    variables = env.settings()
    check_variables(variables)
    for line in lines(variables, values):
        print(line)


def lines(variables: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """One line a setting, in columns."""
    rows = [("setting", "value", "from", "flag", "what it does")]
    for settings in SETTINGS:
        settings.resolve({}, variables, values)  # refuses what is out of range
        found = settings.sources({}, variables, values)
        for option in settings.options():
            value, source = found[option.name]
            shown = "-" if value == "" else "(set)" if option.secret else str(value)
            rows.append((option.toml, shown, source, option.flag, option.help))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) + f"  {row[4]}" for row in rows
    ]
