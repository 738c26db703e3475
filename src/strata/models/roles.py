"""What a tensor is for, from its GGUF name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Parts of a model, in the order they are listed to people."""

    EMBEDDING = "embedding"
    OUTPUT_HEAD = "output head"
    ATTENTION = "attention"
    DELTA_RULE = "delta rule"
    DENSE_FFN = "dense FFN"
    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERT = "shared expert"
    ROUTER = "router"
    NORMS = "norms"
    HYPER_CONNECTIONS = "hyper-connections"
    NGRAM_TABLE = "n-gram table"
    DRAFT_LAYER = "draft layer"
    VISION = "vision"
    OTHER = "other"


BLOCK_NAME = re.compile(r"blk\.(\d{1,9})\.(.+)")

# First match wins; the patterns see the name without "blk.N.".
_PATTERNS = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"nextn\.", Role.DRAFT_LAYER),
        (r"(v|mm|a)\.|resampler\.", Role.VISION),
        (r"per_layer_token_embd\.|ple_", Role.NGRAM_TABLE),
        (r"(output_)?hc_", Role.HYPER_CONNECTIONS),
        (r".*norm(_\w+)?\.(weight|bias)$|.*_norm$", Role.NORMS),
        (r"token_embd|position_embd|token_types", Role.EMBEDDING),
        (r"output\.(weight|bias|scale)", Role.OUTPUT_HEAD),
        (r"ssm_", Role.DELTA_RULE),
        (r"attn_|indexer\.", Role.ATTENTION),
        (r"ffn_gate_inp_shexp|ffn_\w+_shexp", Role.SHARED_EXPERT),
        (r"ffn_gate_inp|exp_probs_b", Role.ROUTER),
        (r"ffn_\w+_exps|ffn_(gate|up|down)\.\d+\.", Role.ROUTED_EXPERTS),
        (r"ffn_", Role.DENSE_FFN),
    )
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of one file's tensors; needs to know which blocks are drafts and which hold a delta rule."""

    delta_blocks: frozenset[int]
    first_draft_block: int | None

    def of(self, name: str) -> Role:
        """The role of the tensor of this name."""
        block, rest = split_block(name)
        if block is not None and self.first_draft_block is not None and block >= self.first_draft_block:
            return Role.DRAFT_LAYER
        role = next((role for pattern, role in _PATTERNS if pattern.match(rest)), Role.OTHER)
        # A delta-rule block has its qkv and output-gate projections under attention's names.
        if role is Role.ATTENTION and block in self.delta_blocks:
            return Role.DELTA_RULE
        return role


def roles_of(names: Iterable[str], first_draft_block: int | None) -> Roles:
    """Roles for a file with these tensors; blocks from `first_draft_block` on are draft layers."""
    split = [split_block(name) for name in names]
    delta = frozenset(block for block, rest in split if block is not None and rest.startswith("ssm_"))
    return Roles(delta, first_draft_block)


def split_block(name: str) -> tuple[int | None, str]:
    """Block number (None outside blocks) and the name inside the block."""
    match = BLOCK_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)
