"""Every setting with its default, in one place: frozen dataclasses whose fields carry their names and limits.

A setting of the engine comes from its flag, else from `STRATA_<KEY>`, else from the default here; `resolve`
is the place for a configuration file. What one request asks for has flags only. `OPTIONS` is the table that
the command line and its help are made from.
"""

from dataclasses import dataclass

from strata.config.option import Option, Settings, setting

__all__ = [
    "OPTIONS", "SETTINGS", "EngineOptions", "Option", "SamplingOptions", "ServerOptions", "ServingOptions", "Settings",
]  # fmt: skip

MAX_THREADS = 1024


@dataclass(frozen=True)
class EngineOptions(Settings):
    """How a model is run; none of these changes what the model is."""

    device: str = setting(
        "auto",
        "--device",
        "What computes; auto: the first GPU that can be used, else the CPU; N: GPU N.",
        toml="gpu.device_id",
        variable="DEVICE",
        pattern=r"auto|cpu|cuda|(cuda:)?\d{1,3}",
        limits_text="auto, cpu, cuda, cuda:N or N",
    )
    offload_layers: str = setting(
        "auto",
        "--offload-layers",
        "First layers of a dense model, that the CPU computes beside a GPU; auto: as many as the GPU's memory cannot "
        "hold.",
        toml="gpu.offload_layers",
        in_environment=False,
        pattern=r"auto|\d{1,4}",
        limits_text="auto or a number",
    )
    backend: str = setting(
        "auto",
        "--backend",
        "auto: the device's kernels; sim: the CPU as a GPU with memory tiers, for tests; reference: NumPy, plain "
        "float32; contract: NumPy, the kernels' arithmetic.",
        toml="infer.backend",
        choices=("auto", "cpu", "sim", "reference", "contract"),
    )
    threads: int = setting(
        0,
        "--threads",
        "CPU threads; 0: as many as the machine grants.",
        toml="infer.threads",
        aliases=("--cpu-threads",),
        low=0,
        high=MAX_THREADS,
    )
    isa: str = setting(
        "auto",
        "--isa",
        "Instruction set of the CPU kernels; auto: the best that this machine has.",
        toml="infer.isa",
        choices=("auto", "generic", "avx2", "avxvnni", "avx512"),
    )
    kv: str = setting(
        "auto",
        "--kv",
        "Type in which keys and values are kept; auto: f16 where the context fits, else int8.",
        toml="context.cache_dtype",
        choices=("auto", "f32", "f16", "int8", "k8v4", "q4"),
    )
    max_model_len: int = setting(
        0,
        "--max-context",
        "Longest context in tokens; 0: what the model was made for.",
        toml="context.context_length",
        aliases=("--max-model-len", "--ctx-size"),
        low=0,
        high=2**24,
    )
    prefill: str = setting(
        "auto",
        "--prefill",
        "Prompt tokens read at a time, in blocks of 64; auto: what reads soonest; 0: every token in the step form.",
        toml="infer.prefill",
        pattern=r"auto(:[1-9]\d{1,4})?|\d{1,5}",
        limits_text="auto, auto:MAX or a number of tokens up to 99,999",
    )
    max_num_seqs: int = setting(
        1,
        "--parallel",
        "Sequences that may be generated at once.",
        toml="infer.decode_batch",
        aliases=("--max-num-seqs",),
        low=1,
        high=1024,
    )
    expert_cache: str = setting(
        "auto",
        "--expert-cache",
        "Experts that VRAM holds; auto: as many as fit.",
        toml="memory.expert_cache",
        in_environment=False,
    )
    kv_resident: int = setting(
        0,
        "--kv-resident",
        "Cells of layers with an indexer that VRAM holds; the others are fetched from RAM; 0: chosen by the plan.",
        toml="memory.kv_resident",
        in_environment=False,
        low=0,
        high=2**31,
    )
    kv_prefetch: str = setting(
        "auto",
        "--kv-prefetch",
        "Whether prompts have cells that lie in RAM copied to VRAM before they attend to them; auto: where it fits.",
        toml="memory.kv_prefetch",
        in_environment=False,
        choices=("auto", "on", "off"),
    )
    ram_budget_gib: float = setting(
        0.0,
        "--ram-budget-gib",
        "RAM that experts may take; 0: what is left. Experts beyond it are read from the SSD.",
        toml="memory.ram_budget_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    mtp: str = setting(
        "auto",
        "--mtp",
        "Draft layer; auto: the model file's where it has one; on, off, or the file or folder of another.",
        toml="drafts.mtp",
        in_environment=False,
        on_off=True,
    )
    mtp_window: int = setting(
        16384,
        "--mtp-window",
        "Cells that a draft attends to; 0: all.",
        toml="drafts.mtp_window",
        in_environment=False,
        low=0,
        high=2**24,
    )
    lookup: str = setting(
        "on",
        "--lookup",
        "Drafts from the text itself, where it repeats.",
        toml="drafts.lookup",
        in_environment=False,
        choices=("on", "off"),
    )
    spec: int = setting(
        7,
        "--spec",
        "Most drafts at once for a sequence; 0: none. How many there are is decided by what they gain.",
        toml="drafts.spec",
        in_environment=False,
        low=0,
        high=7,
    )
    spec_min_p: float = setting(
        0.0,
        "--spec-min-p",
        "Probability that the draft layer must give a draft; a chain ends at the first below it.",
        toml="drafts.spec_min_p",
        in_environment=False,
        low=0.0,
        high=1.0,
    )
    draft_vocab: str = setting(
        "auto",
        "--draft-vocab",
        "Tokens that the draft layer may propose; auto: of English, code, Chinese, Japanese, Korean; full: all; or a "
        "file of `strata draft-vocab build`.",
        toml="drafts.draft_vocab",
        in_environment=False,
    )
    trace_routes: str = setting(
        "",
        "--trace-routes",
        "File that receives which experts every row chooses (for `strata bench cache`).",
        toml="memory.trace_routes",
        in_environment=False,
    )
    ram_limit_gib: float = setting(
        0.0,
        "--ram-limit-gib",
        "RAM that the machine is taken to have; 0: what it reports.",
        toml="memory.ram_limit_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    vram_limit_gib: float = setting(
        0.0,
        "--vram-limit-gib",
        "VRAM that the GPU is taken to have; 0: what it reports.",
        toml="memory.vram_limit_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    vram_reserve_mib: float = setting(
        700.0,
        "--vram-reserve-mib",
        "VRAM that stays free.",
        toml="memory.vram_reserve_mib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    link_limit_gbps: float = setting(
        0.0,
        "--link-limit-gbps",
        "GB per second that the link between RAM and GPU is taken to carry; 0: as measured.",
        toml="memory.link_limit_gbps",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    cpu_share: str = setting(
        "auto",
        "--cpu-share",
        "Share of the experts missing in VRAM that the CPU computes, 0 to 1; auto: by measured rates.",
        toml="memory.cpu_share",
        in_environment=False,
    )
    pcie_share: str = setting(
        "auto",
        "--pcie-share",
        "Share of those experts that is copied to the GPU instead: one less --cpu-share; auto: by measured rates.",
        toml="memory.pcie_share",
        in_environment=False,
    )
    exclusive: str = setting(
        "off",
        "--exclusive",
        "on: experts that VRAM holds are the first to leave RAM, where RAM does not hold all.",
        toml="memory.exclusive",
        in_environment=False,
        choices=("on", "off"),
    )
    lookahead: str = setting(
        "on",
        "--lookahead",
        "Read experts ahead that the next layer's router names; it acts where RAM holds only some.",
        toml="memory.lookahead",
        in_environment=False,
        choices=("on", "off"),
    )
    ngram_table: str = setting(
        "auto",
        "--ngram-table",
        "Where rows of the n-gram table come from; auto: the file's map, or direct reads where experts are read; "
        "on a GPU RAM up to 256 MiB, else direct reads.",
        toml="memory.ngram_table",
        in_environment=False,
        choices=("auto", "ram", "map", "direct"),
    )


@dataclass(frozen=True)
class SamplingOptions(Settings):
    """How one request chooses its tokens."""

    max_tokens: int = setting(256, "--max-tokens", "Most tokens to generate.", low=1, high=2**24)
    temperature: float = setting(0.0, "--temperature", "0: always the likeliest token.", low=0.0, high=100.0)
    top_k: int = setting(0, "--top-k", "Choose among the K likeliest tokens; 0: all.", low=0, high=2**31 - 1)
    top_p: float = setting(
        1.0,
        "--top-p",
        "Choose among the likeliest tokens that together reach this probability.",
        low=0.0,
        high=1.0,
        open_low=True,
    )
    min_p: float = setting(
        0.0,
        "--min-p",
        "Leave out tokens less likely than this share of the likeliest.",
        low=0.0,
        high=1.0,
        open_high=True,
    )
    repetition_penalty: float = setting(
        1.0,
        "--repeat-penalty",
        "Lowers the score of tokens that have occurred; 1: off.",
        aliases=("--repetition-penalty",),
        low=0.001,
        high=100.0,
    )
    presence_penalty: float = setting(
        0.0, "--presence-penalty", "Taken once from tokens already generated.", low=-100.0, high=100.0
    )
    frequency_penalty: float = setting(
        0.0, "--frequency-penalty", "Taken for each time a token was generated.", low=-100.0, high=100.0
    )
    seed: int = setting(
        0, "--seed", "The same seed, prompt and settings give the same text.", low=0, high=2**63 - 1
    )


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


SETTINGS = (ServerOptions, EngineOptions, ServingOptions)  # what a configuration file may set
OPTIONS: dict[str, Option] = {
    o.name: o
    for cls in (EngineOptions, SamplingOptions, ServingOptions, ServerOptions)
    for o in cls.options()
}
