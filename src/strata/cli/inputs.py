"""Reading what commands are given: prompts, texts, token files, biases. Every fault is a one-line UsageError."""

import sys
from collections.abc import Sequence
from pathlib import Path

from strata.errors import UsageError

MAX_BIAS = 1e38  # a float32, and so is a score with it


def read_prompt(argument: str | None, option: str | None) -> str:
    """The prompt, from either place; `-` reads standard input."""
    if argument is not None and option is not None:
        raise UsageError("two prompts: give one as the argument or with --prompt, not both")
    prompt = option if argument is None else argument
    if prompt is None:
        raise UsageError("no prompt: give it as the argument, with --prompt, or - for standard input")
    raw = _read_stdin() if prompt == "-" else prompt.encode("utf-8", "surrogateescape")
    text = decode(raw, "the prompt")
    if not text:
        raise UsageError("the prompt is empty")
    return text


def _read_stdin() -> bytes:
    if sys.stdin is None:  # closed before the start
        raise UsageError("the prompt is - but standard input is closed")
    return sys.stdin.buffer.read()


def read_system(option: str | None) -> str | None:
    """The system message, where one is given."""
    return None if option is None else decode(option.encode("utf-8", "surrogateescape"), "--system")


def check_stops(stops: Sequence[str]) -> None:
    """UsageError for a stop text that no answer can contain."""
    for stop in stops:
        if not stop:
            raise UsageError("--stop is empty")
        decode(stop.encode("utf-8", "surrogateescape"), "--stop")


def read_text(path: Path) -> str:
    """A UTF-8 text file, not empty."""
    try:
        text = decode(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if not text:
        raise UsageError(f"{path} is empty")
    return text


def decode(raw: bytes, what: str) -> str:
    """UTF-8 bytes as text; UsageError says where they are none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise UsageError(f"{what} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def read_tokens(path: Path) -> list[int]:
    """Token ids of a .npy file: whole numbers in one dimension."""
    import numpy as np

    try:
        tokens = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file of numbers: {error}") from None
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        shape = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, np.ndarray) else "an archive"
        raise UsageError(f"{path} holds {shape}; it must hold whole numbers in one dimension")
    if not tokens.size:
        raise UsageError(f"{path} holds no tokens")
    return [int(token) for token in tokens]


def check_vocabulary(tokens: Sequence[int], vocab_size: int, source: object) -> None:
    """UsageError for the first token that the model does not have; `source` is where they came from."""
    for at, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise UsageError(f"{source}: token {token} at {at} is outside the vocabulary of {vocab_size}")


def parse_logit_bias(items: Sequence[str], vocab_size: int) -> dict[int, float]:
    """`ID=VALUE` items: what is added to the scores of those tokens."""
    biases = {}
    for item in items:
        key, _, text = item.partition("=")
        try:
            token, value = int(key), float(text)
        except ValueError:
            raise UsageError(f"--logit-bias is {item!r}; it must be ID=VALUE, for example 42=-1.5") from None
        if not 0 <= token < vocab_size:
            raise UsageError(f"--logit-bias {item}: token {token} is outside the vocabulary of {vocab_size}")
        if not abs(value) <= MAX_BIAS:  # NaN too
            raise UsageError(f"--logit-bias {item}: the value must be a number from -1e+38 to 1e+38")
        biases[token] = value
    return biases
