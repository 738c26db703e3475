"""NumPy decode and the integer form: against the `gguf` package, a slow formula, and each other."""

import numpy as np
import pytest
from numpy.typing import NDArray
from quant_blocks import QUANTISED, random_blocks, same_bits

import gguf
from strata.errors import UnsupportedError, UsageError
from strata.quants import FORMATS, Format, IntegerBlocks, legacy
from strata.quants import formats as formats_module
from strata.quants.tables import UE4M3_HALVED

IN_PACKAGE = [name for name in FORMATS if name != "Q2_0"]  # gguf 0.19.0 does not know Q2_0


def oracle(fmt: Format, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.type_id))


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("name", IN_PACKAGE)
def test_decode_equals_the_package_in_bits(name: str, extreme: bool) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 1200, seed=1, extreme=extreme).reshape(300, -1)
    assert same_bits(fmt.decode(raw), oracle(fmt, raw))


@pytest.mark.parametrize("name", IN_PACKAGE)
def test_a_fault_in_any_byte_is_caught(name: str) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 1, seed=2)
    want = oracle(fmt, raw)
    for at in range(fmt.block_bytes):
        faulty = np.repeat(raw, 8, axis=0)
        faulty[:, at] ^= 1 << np.arange(8, dtype=np.uint8)
        assert not all(same_bits(row[None], want) for row in fmt.decode(faulty)), f"byte {at}"


def swap_rows(grid: NDArray[np.int8]) -> NDArray[np.int8]:
    faulty = grid.copy()
    faulty[[3, 4]] = faulty[[4, 3]]
    return faulty


@pytest.mark.parametrize("name", [n for n in FORMATS if n.startswith(("IQ1", "IQ2", "IQ3"))])
def test_two_grid_entries_swapped_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 1200, seed=3)
    true_grid = formats_module.iquants.grid
    monkeypatch.setattr(formats_module.iquants, "grid", lambda key: swap_rows(true_grid(key)))
    assert not same_bits(fmt.decode(raw), oracle(fmt, raw))


def test_nibbles_in_the_wrong_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true_fields = legacy.fields
    monkeypatch.setattr(legacy, "fields", lambda raw, group, bits: true_fields(raw, 1, bits))
    for name in ("Q4_0", "Q5_1", "IQ4_NL", "MXFP4", "NVFP4", "TQ2_0"):
        raw = random_blocks(FORMATS[name], 4, seed=4)
        assert not same_bits(FORMATS[name].decode(raw), oracle(FORMATS[name], raw)), name


def slow_q2_0(block: bytes) -> list[float]:
    """A Q2_0 block by its definition, one value at a time."""
    d = float(np.frombuffer(block[:2], np.float16)[0])
    return [d * ((block[2 + j // 4] >> 2 * (j % 4) & 3) - 1) for j in range(64)]


@pytest.mark.parametrize("extreme", [False, True])
def test_q2_0_follows_its_definition(extreme: bool) -> None:
    raw = random_blocks(FORMATS["Q2_0"], 100, seed=5, extreme=extreme)
    want = np.array([slow_q2_0(block.tobytes()) for block in raw], np.float32)
    assert np.array_equal(FORMATS["Q2_0"].decode(raw), want)
    raw[50, 9] ^= 0x40
    assert not np.array_equal(FORMATS["Q2_0"].decode(raw), want)


def reconstruct(form: IntegerBlocks) -> NDArray[np.float64]:
    x = form.codes.reshape(-1, 2, 16) * (form.scales * form.d.astype(np.float64))[:, :, None]
    if form.mins is not None and form.dmin is not None:
        x += (form.mins * form.dmin.astype(np.float64)[:, None])[:, :, None]
    return x.reshape(-1, 32)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("name", QUANTISED)
def test_integer_form_is_the_decoded_weight(name: str, extreme: bool) -> None:
    fmt = FORMATS[name]
    rows, k = 8, 2 * 256
    raw = random_blocks(fmt, rows * k // fmt.block_values, seed=6, extreme=extreme)
    form = fmt.integer_form(raw.reshape(rows, -1), rows, k)
    assert form.codes.shape == (rows * k // 32, 32) and form.codes.dtype == np.int8
    assert form.scales.shape == form.d.shape == (rows * k // 32, 2)
    assert (form.mins is not None) == (form.dmin is not None) == fmt.has_min
    assert form.scale16 == fmt.scale16
    if not fmt.scale16:
        assert same_bits(form.d[:, 0].copy(), form.d[:, 1].copy())
    if not fmt.halves:
        assert np.array_equal(form.scales[:, 0], form.scales[:, 1])
        assert form.mins is None or np.array_equal(form.mins[:, 0], form.mins[:, 1])
    exact, decoded = reconstruct(form), fmt.decode(raw).reshape(-1, 32)
    # One rounding of d * scale, one of the product, one of the sum: three half-ulps of the largest term.
    largest = np.abs(exact).max(axis=1, keepdims=True) + np.abs(form.dmin[:, None] * 63 if fmt.has_min else 0)
    assert (np.abs(exact - decoded) <= 2e-7 * largest).all()
    row = int(np.abs(form.d[:, 1]).argmax())
    form.scales[row, 1] += 1  # the planted fault
    assert (np.abs(reconstruct(form) - decoded)[row] > 2e-7 * largest[row]).any()


def test_small_float_scales_are_exact() -> None:
    """UE4M3 by its definition in exact arithmetic: 2^(e - 7) (1 + m / 8), or 2^-6 m / 8 when e is 0."""
    for code in range(256):
        e, m = code >> 3 & 15, code & 7
        value = 2.0 ** (e - 7) * (1 + m / 8) if e else 2.0**-6 * m / 8
        assert UE4M3_HALVED[code] == (0 if code == 0x7F else value / 2)


# max |code|, max |scale|, max min of each format, from its layout and codebooks.
BOUNDS = {
    "Q4_0": (8, 1, 0),
    "Q4_1": (15, 1, 1),
    "Q5_0": (16, 1, 0),
    "Q5_1": (31, 1, 1),
    "Q8_0": (128, 1, 0),
    "Q2_K": (3, 15, 15),
    "Q3_K": (4, 32, 0),
    "Q4_K": (15, 63, 63),
    "Q5_K": (31, 63, 63),
    "Q6_K": (32, 128, 0),
    "IQ1_S": (9, 15, 0),
    "IQ1_M": (9, 15, 0),
    "IQ2_XXS": (43, 31, 0),
    "IQ2_XS": (43, 31, 0),
    "IQ2_S": (43, 31, 0),
    "IQ3_XXS": (62, 31, 0),
    "IQ3_S": (15, 31, 0),
    "IQ4_NL": (127, 1, 0),
    "IQ4_XS": (127, 32, 0),
    "TQ1_0": (1, 1, 0),
    "TQ2_0": (2, 1, 0),
    "MXFP4": (12, 1, 0),
    "NVFP4": (12, 1, 0),
    "Q2_0": (2, 1, 0),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_integer_sums_are_exact_in_int32_and_float32(name: str) -> None:
    """|I| <= 32 * 127 * code (* scale per 16), |J| <= 32 * 127 * min: below 2^24, so float(I) is exact."""
    fmt = FORMATS[name]
    blocks = 4000 * 256 // fmt.block_values
    form = fmt.integer_form(random_blocks(fmt, blocks, seed=7), 1, blocks * fmt.block_values)
    found = (
        int(np.abs(form.codes.astype(int)).max()),
        int(np.abs(form.scales).max()),
        0 if form.mins is None else int(form.mins.max()),
    )
    assert found == BOUNDS[name]
    code, scale, smallest = BOUNDS[name]
    assert 32 * 127 * max(code * scale, smallest) < 2**24  # with a scale per 32 the contract sums codes alone


def test_sizes_are_checked() -> None:
    q4_k = FORMATS["Q4_K"]
    with pytest.raises(UsageError, match=r"Q4_K: a row of 640 values is not whole blocks of 256"):
        q4_k.row_bytes(640)
    with pytest.raises(UsageError, match=r"Q4_K: 2 rows of 256 values need 288 bytes, got 144"):
        q4_k.integer_form(np.zeros(144, np.uint8), 2, 256)
    with pytest.raises(UsageError, match=r"143"):
        q4_k.decode(np.zeros((2, 143), np.uint8))
    with pytest.raises(UnsupportedError, match="BF16 has no integer form"):
        FORMATS["BF16"].integer_form(np.zeros(2, np.uint8), 1, 1)


def test_decode_of_many_chunks_and_none() -> None:
    fmt = FORMATS["Q8_0"]
    raw = random_blocks(fmt, 40_000, seed=8)
    assert same_bits(fmt.decode(raw)[-1], fmt.decode(raw[-1]))
    assert fmt.decode(np.zeros((0, 34), np.uint8)).shape == (0, 32)
