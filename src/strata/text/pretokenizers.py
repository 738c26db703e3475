"""Named pre-tokenizers (`tokenizer.ggml.pre`): how text is cut before merges, which never cross a cut."""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from strata.errors import UnsupportedError

# Each regular expression is the one published with its model family's tokenizer.json (GPT-2, Qwen2, Llama 3).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
# As Qwen2, with combining marks counted as letters.
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT = r"\p{N}"


@dataclass(frozen=True)
class PreTokenizer:
    """Cuts of one family: patterns applied in turn to the pieces that the previous one left."""

    patterns: tuple[str, ...]
    nfc: bool = False  # text is composed (Unicode NFC) first
    ignore_merges: bool = False  # a piece that is a token as a whole is taken without merging
    add_bos: bool = False  # default where the file has no `add_bos_token`


_TABLE = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((_DIGIT, _GPT2)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a `tokenizer.ggml.pre` value; UnsupportedError names those there are."""
    if name not in _TABLE:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} is not supported (supported: {', '.join(sorted(_TABLE))})"
        )
    return _TABLE[name]


def build_splitter(pre: PreTokenizer, add_space_prefix: bool) -> pre_tokenizers.PreTokenizer:
    """The same cuts as an object of the `tokenizers` library, ending in byte-level characters."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=add_space_prefix, use_regex=False)
    return pre_tokenizers.Sequence([*splits, byte_level])
