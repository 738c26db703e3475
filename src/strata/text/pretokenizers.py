"""Named pre-tokenizers (`tokenizer.ggml.pre`): how text is cut before merges, which never cross a cut."""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from strata.errors import UnsupportedError

# Each regular expression is the one published with its model family's tokenizer.json.
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
_LINE_END = r"[\r\n]"
_FALCON_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# DeepSeek LLM lists letters that have a case, of the scripts it chose.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_WORD = rf"\s?[{_CASED}]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# `\s+$`, tried once a run of spaces and not at each of its characters, which would take the square of its length.
_TRAILING_SPACE = r"(?<!\s)\s++$"


@dataclass(frozen=True)
class PreTokenizer:
    """Cuts of one family: patterns applied in turn to the pieces that the previous one left."""

    patterns: tuple[str, ...]
    nfc: bool = False  # text is composed (Unicode NFC) first
    ignore_merges: bool = False  # a piece that is a token as a whole is taken without merging
    add_bos: bool = False  # default where the file has no `add_bos_token`


_TABLE = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "mpt": PreTokenizer((_GPT2,), nfc=True),
    "smollm": PreTokenizer((_DIGIT, _GPT2)),
    "starcoder": PreTokenizer((_DIGIT, _GPT2)),
    "refact": PreTokenizer((_DIGIT, _GPT2)),
    "command-r": PreTokenizer((_DIGIT, _GPT2), nfc=True),
    "falcon": PreTokenizer((_FALCON_PUNCTUATION, _GPT2, "[0-9]{3}")),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    "deepseek-coder": PreTokenizer((_LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    "deepseek-llm": PreTokenizer(
        (_LINE_END, _DEEPSEEK_WORD, _DEEPSEEK_PUNCTUATION, _TRAILING_SPACE, _EAST_ASIAN, r"\p{N}+")
    ),
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a `tokenizer.ggml.pre` value; UnsupportedError names those there are."""
    if name not in _TABLE:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} is not supported (supported: {', '.join(sorted(_TABLE))})"
        )
    return _TABLE[name]


def build_splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """The same cuts as an object of the `tokenizers` library."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    return pre_tokenizers.Sequence(splits)
