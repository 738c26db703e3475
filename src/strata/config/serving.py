"""Settings of serving: sharing an engine, and the server itself."""

from dataclasses import dataclass

from strata.config.option import Settings, setting


@dataclass(frozen=True)
class ServingOptions(Settings):
    """How requests share an engine, and what is kept of their texts."""

    prompt_share: int = setting(
        60,
        "--prompt-share",
        "Percent of the time that reading prompts may take while answers are generated.",
        toml="infer.prompt_share",
        low=1,
        high=95,
    )
    max_queue: int = setting(
        0, "--max-queue", "Requests that may be open at once; 0: any number.", toml="server.max_queue"
    )
    max_per_key: int = setting(
        0,
        "--max-per-key",
        "Requests of one key that may be open at once; 0: any number.",
        toml="server.max_per_key",
    )
    conversation_cache_mib: int = setting(
        4096,
        "--conversation-cache-mib",
        "RAM for conversations beside the KV pool; less where less is left.",
        toml="sessions.conversation_cache_mib",
    )
    prompt_cache_every: int = setting(
        8192,
        "--prompt-cache-every",
        "Tokens of a prompt between two checkpoints of recurrent state.",
        toml="sessions.prompt_cache_every",
        low=64,
    )
    session_dir: str = setting(
        "",
        "--session-dir",
        "Directory in which conversations outlive the process; empty: none.",
        toml="sessions.session_dir",
    )
    session_mib: int = setting(
        32768, "--session-mib", "Space that session files may take.", toml="sessions.session_mib"
    )


@dataclass(frozen=True)
class ServerOptions(Settings):
    """Where the server listens and what it serves."""

    model: str = setting(
        "",
        "--model",
        "GGUF file (of a split model: any part).",
        toml="model.path",
        variable="MODEL",
        aliases=("-m",),
    )
    model_id: str = setting(
        "", "--model-id", "Name of the model in the protocol; empty: the file's.", toml="server.model_id"
    )
    host: str = setting(
        "127.0.0.1",
        "--host",
        "Address to listen on; beyond this machine a key is needed.",
        toml="server.host",
    )
    port: int = setting(
        8080, "--port", "Port to listen on; 0: one that is free.", toml="server.port", low=0, high=65535
    )
    api_key: str = setting(
        "",
        "--api-key",
        "Keys that clients must send, by commas; better set by the environment, for command lines can be read.",
        toml="server.api_key",
        secret=True,
    )
    api_key_file: str = setting("", "--api-key-file", "File with one key a line.", toml="server.api_key_file")
    allowed_hosts: str = setting(
        "",
        "--allowed-hosts",
        "Host names answered to, by commas, beside this machine's own; on another --host, empty: any.",
        toml="server.allowed_hosts",
    )
    cors_origins: str = setting(
        "",
        "--cors-origins",
        "Origins whose pages may ask, by commas; empty: only pages of this server.",
        toml="server.cors_origins",
    )
    heartbeat: float = setting(
        10.0,
        "--heartbeat",
        "Seconds of silence in a stream after which a sign of life is sent.",
        toml="server.heartbeat",
        low=0.0,
        high=15.0,
        open_low=True,
    )
    client_timeout: float = setting(
        60.0,
        "--client-timeout",
        "Seconds a client may take to go on with a request, or to read what waits for it.",
        toml="server.client_timeout",
        low=0.0,
        high=86400.0,
        open_low=True,
    )
    shutdown_timeout: float = setting(
        30.0,
        "--shutdown-timeout",
        "Seconds that running answers get when the server is told to stop.",
        toml="server.shutdown_timeout",
        low=0.0,
        high=86400.0,
    )
    step_timeout: float = setting(
        300.0,
        "--step-timeout",
        "Seconds after which a step counts as stuck, and requests end with an error; 0: never.",
        toml="server.step_timeout",
        low=0.0,
        high=86400.0,
    )
    idle_unload: float = setting(
        0.0,
        "--idle-unload",
        "Seconds without a request after which the model leaves memory until the next; 0: never.",
        toml="server.idle_unload",
        low=0.0,
        high=1e9,
    )
    max_body_mib: int = setting(
        16, "--max-body-mib", "Largest request body in MiB.", toml="server.max_body_mib", low=1, high=4096
    )
    repetition_limit: int = setting(
        0,
        "--repetition-limit",
        "Ends an answer whose last N tokens say the same again and again; 0: never.",
        toml="server.repetition_limit",
        low=0,
        high=2**20,
    )
    log_json: bool = setting(
        False, "--log-json", "Write the log as one JSON object a line.", toml="server.log_json"
    )
