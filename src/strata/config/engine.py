"""Settings of the engine."""

from dataclasses import dataclass

from strata.config.option import Settings, setting

MAX_THREADS = 1024
SHARE = r"auto|0(\.\d*)?|\.\d+|1(\.0*)?"


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
        pattern=r"auto(:(6[4-9]|[7-9]\d|[1-9]\d{2,4}))?|\d{1,5}",
        limits_text="auto, auto:MAX with MAX 64 or more, or a number of tokens up to 99,999",
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
        pattern=r"auto|\d{1,9}",
        limits_text="auto or a whole number of experts",
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
        "Probability that the draft layer must give a draft; a chain ends at the first below it. Above 0, drafts are "
        "verified only once the host has read them.",
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
        pattern=SHARE,
        limits_text="auto or a number from 0 to 1",
    )
    pcie_share: str = setting(
        "auto",
        "--pcie-share",
        "Share of those experts that is copied to the GPU instead: one less --cpu-share; auto: by measured rates.",
        toml="memory.pcie_share",
        in_environment=False,
        pattern=SHARE,
        limits_text="auto or a number from 0 to 1",
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
