"""Where a model file's name or metadata and its content say different things."""

import re
from collections import Counter
from collections.abc import Iterator

from strata.gguf.metadata import StringArray
from strata.gguf.reader import SHARD_NAME, ModelFile
from strata.gguf.types import TensorType
from strata.models.roles import Role, roles_of, split_block

# A quantiser's recipe by name, and the types that may hold most of the weight bytes of what it makes.
RECIPES: dict[str, frozenset[TensorType]] = {
    **{kind.name: frozenset({kind}) for kind in TensorType},
    "IQ2_S": frozenset({TensorType.IQ2_S, TensorType.IQ2_XS}),
    "IQ2_M": frozenset({TensorType.IQ2_S}),
    "IQ3_XS": frozenset({TensorType.IQ3_S, TensorType.IQ3_XXS}),
    "IQ3_M": frozenset({TensorType.IQ3_S}),
    "MXFP4_MOE": frozenset({TensorType.MXFP4}),
}

# `general.file_type`, the ids of llama.cpp's `llama_ftype`, to the recipe.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q3_K",
    13: "Q3_K",
    14: "Q4_K",
    15: "Q4_K",
    16: "Q5_K",
    17: "Q5_K",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}

# Longest first, so that MXFP4_MOE is not read as MXFP4; the suffixes are sizes of one recipe.
_LONGEST_FIRST = "|".join(sorted(RECIPES, key=len, reverse=True))
_RECIPE_NAME = re.compile(
    rf"(?<![A-Za-z0-9])({_LONGEST_FIRST})(_(?:S|M|L|XL|XXL))?(?![A-Za-z0-9])", re.IGNORECASE
)
_SIZE_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([MBTmb])(?![A-Za-z0-9])")
_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}
# Labels are rounded and leave out embeddings or not, as their makers like; this much is a different model.
SIZE_TOLERANCE = 0.25
# Parts that recipes treat apart, so that they say nothing about which recipe was used.
_APART = {Role.EMBEDDING, Role.OUTPUT_HEAD, Role.NGRAM_TABLE, Role.NORMS, Role.DRAFT_LAYER, Role.OTHER}


def find_disagreements(model: ModelFile, architecture: str) -> list[str]:
    """One sentence for each contradiction found."""
    return [
        *_recipes(model),
        *_sizes(model),
        *_blocks(model, architecture),
        *_shapes(model, architecture),
        *_splits(model),
    ]


def _recipes(model: ModelFile) -> Iterator[str]:
    """The recipe that the file name and `general.file_type` give, against the type of most weight bytes."""
    roles = roles_of(model.tensors, None)
    nbytes: Counter[TensorType] = Counter()
    for name, info in model.tensors.items():
        if len(info.ne) > 1 and roles.of(name) not in _APART:
            nbytes[info.type] += info.nbytes
    if not nbytes:
        return
    (main, largest), *_ = nbytes.most_common(1)
    found = f"the type with the most weight bytes is {main.name} ({100 * largest / nbytes.total():.0f} %)"
    if (match := _RECIPE_NAME.search(model.path.name)) and main not in RECIPES[match[1].upper()]:
        yield f"the file name says {match[0]}, but {found}"
    file_type = model.get("general.file_type", int, -1)
    if file_type in FILE_TYPES and main not in RECIPES[FILE_TYPES[file_type]]:
        yield f"general.file_type is {file_type} ({FILE_TYPES[file_type]}), but {found}"


def _sizes(model: ModelFile) -> Iterator[str]:
    """A size such as 7B in the file name or `general.size_label`, against the number of parameters."""
    if "token_embd.weight" not in model.tensors:
        return  # part of a model: it bears the name of the whole
    parameters = sum(info.values for info in model.tensors.values())
    label = model.get("general.size_label", str, "")
    for source, text in (("the file name", model.path.name), ("general.size_label", label)):
        said = {m[0]: float(m[1]) * _UNITS[m[2].upper()] for m in _SIZE_NAME.finditer(text)}
        if said and all(abs(parameters / size - 1) > SIZE_TOLERANCE for size in said.values() if size):
            yield f"{source} says {' and '.join(said)}, but the file holds {parameters:,} parameters"


def _blocks(model: ModelFile, architecture: str) -> Iterator[str]:
    present = {block for block, _ in map(split_block, model.tensors) if block is not None}
    count = model.get(f"{architecture}.block_count", int, -1)
    if count < 0 or (not present and "token_embd.weight" not in model.tensors):
        return
    # A file may leave out its draft layers, or hold nothing but them.
    drafts = model.get(f"{architecture}.nextn_predict_layers", int, 0)
    first = min(present, default=0)
    end = count if first else count - drafts
    # The count may be any number up to 2^64: only the blocks present bound the work.
    missing = end - first - sum(first <= block < end for block in present)
    beyond = [block for block in present if block >= count]
    if missing > 0:
        gap = next(block for block in range(first, end) if block not in present)
        more = f" and {missing - 1} more" if missing > 1 else ""
        yield f"{architecture}.block_count is {count}, but there is no block {gap}{more}"
    if beyond:
        yield f"{architecture}.block_count is {count}, but there is a block {max(beyond)}"


def _shapes(model: ModelFile, architecture: str) -> Iterator[str]:
    """Hidden size, vocabulary and experts that metadata give, against tensor shapes."""
    embedding = model.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.ne) == 2:
        tokens = model.metadata.get("tokenizer.ggml.tokens")
        said = {
            f"{architecture}.embedding_length": (0, model.get(f"{architecture}.embedding_length", int, -1)),
            f"{architecture}.vocab_size": (1, model.get(f"{architecture}.vocab_size", int, -1)),
            "tokenizer.ggml.tokens": (1, len(tokens) if isinstance(tokens, StringArray) else -1),
        }
        for key, (axis, value) in said.items():
            if value not in (-1, embedding.ne[axis]):
                yield f"{key} gives {value}, but token_embd is {list(embedding.ne)}"
    experts = model.get(f"{architecture}.expert_count", int, -1)
    routers = {info.ne[1] for name, info in model.tensors.items() if name.endswith("ffn_gate_inp.weight")}
    if experts >= 0 and routers and routers != {experts}:
        found = ", ".join(str(count) for count in sorted(routers))
        yield f"{architecture}.expert_count is {experts}, but the routers have {found}"


def _splits(model: ModelFile) -> Iterator[str]:
    """A shard's file name on a file that says it is whole; the reader refuses the other cases."""
    match = SHARD_NAME.fullmatch(model.path.name)
    if match and int(match["count"]) > 1 and len(model.shards) == 1:
        yield f"the file name says shard {int(match['no'])} of {int(match['count'])}, but it is not split"
