"""What one request may ask of the sampler."""

from dataclasses import dataclass

from strata.config.option import Settings, setting


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
