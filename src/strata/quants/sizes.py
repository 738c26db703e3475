"""Block sizes by type name: id in the file, values and bytes of a block."""

from typing import NamedTuple


class TensorType(NamedTuple):
    """A GGUF tensor type: its id, name, values per block and bytes per block."""

    id: int
    name: str
    block_values: int
    block_bytes: int


_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (30, "BF16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (42, "Q2_0", 64, 18),
)

TENSOR_TYPES: dict[str, TensorType] = {row[1]: TensorType(*row) for row in _ROWS}
