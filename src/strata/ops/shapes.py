"""Shape checks at the moment an op is emitted; a mismatch is a fault of the file or the architecture, with numbers."""

from strata.errors import ModelFileError
from strata.ops.buffers import Buffer, Weight


def expect(holds: bool, message: str) -> None:
    """Raises ModelFileError(message) unless `holds`."""
    if not holds:
        raise ModelFileError(message)


def expect_shape(weight: Weight, *shape: int) -> None:
    """The weight has exactly this shape (rows first)."""
    expect(
        weight.shape == shape, f"tensor {weight.name} has shape {list(weight.shape)}, expected {list(shape)}"
    )


def expect_width(buffer: Buffer, width: int) -> None:
    """The buffer's rows hold `width` values."""
    found = buffer.shape[-1]
    expect(found == width, f"{buffer.name} has {found} values a row, expected {width}")


def same_shape(a: Buffer, b: Buffer) -> None:
    """Both buffers have one shape."""
    expect(a.shape == b.shape, f"{a} and {b} differ in shape")
