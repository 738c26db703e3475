"""A vocabulary small enough to read: every byte, a few merges, control and user-defined tokens."""

from strata.text.byte_level import BYTE_TO_CHAR

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d"]
SPECIAL = ["<|begin|>", "<|end_of_text|>", "<|im_end|>", "<|im_end|>x"]
BYTES = [BYTE_TO_CHAR[b] for b in range(256)]
TOKENS = [*BYTES, *(m.replace(" ", "") for m in MERGES), *SPECIAL, "[tool]", ""]
BEGIN, END, IM_END, IM_END_X, TOOL = (TOKENS.index(t) for t in (*SPECIAL, "[tool]"))
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def metadata(**changes):
    """Keys of `tokenizer.ggml`, each replaced by keyword; None leaves one out."""
    types = [NORMAL] * 264 + [CONTROL] * 4 + [USER_DEFINED, UNUSED]
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": TOKENS, "merges": MERGES, "token_type": types}
    keys |= {"bos_token_id": BEGIN, "eos_token_id": END}
    return {f"tokenizer.ggml.{k}": v for k, v in (keys | changes).items() if v is not None}
