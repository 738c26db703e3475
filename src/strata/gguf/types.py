"""File-format facts of GGUF: tensor types with their block sizes, and metadata value types.

Ids and sizes are those of GGML's `ggml_type` and of the GGUF specification.
"""

from enum import IntEnum


class TensorType(IntEnum):
    """A tensor's storage format; the value is its id. A block of `block_values` takes `block_bytes`."""

    block_values: int
    block_bytes: int

    # The defaults are for lookup by id alone, which never gets here.
    def __new__(cls, type_id: int, block_values: int = 0, block_bytes: int = 0) -> "TensorType":
        member = int.__new__(cls, type_id)
        member._value_ = type_id
        member.block_values = block_values
        member.block_bytes = block_bytes
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block_values

    def nbytes(self, values: int) -> int:
        """Bytes of `values` values, which must be whole blocks."""
        blocks, rest = divmod(values, self.block_values)
        if rest:
            raise ValueError(f"{values} values are not whole {self.name} blocks of {self.block_values}")
        return blocks * self.block_bytes


class ValueType(IntEnum):
    """Type of a metadata value; the value is its id in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# The `struct` letter of each value type of fixed size; with "<" before it NumPy takes it too.
SCALAR_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 8
"""Arrays nested deeper than this are refused; real files do not nest at all."""
