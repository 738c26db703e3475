"""The native header against the NumPy table: integer blocks, float32 values, one contract chain."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from quant_blocks import QUANTISED, address, random_blocks, same_bits

from strata import _native
from strata.quants import FORMATS, FORMATS_BY_ID, Format, IntegerBlocks
from strata.quants.header import header_text

BLOCK32 = np.dtype(
    [("code", "i1", 32), ("scale", "<i4", 2), ("d", "<f4", 2), ("min", "<i4", 2), ("dmin", "<f4")], align=True
)


def native_blocks(fmt: Format, raw: NDArray[np.uint8]) -> NDArray[np.void]:
    values = raw.size // fmt.block_bytes * fmt.block_values
    out = np.zeros(values // 32, BLOCK32)
    _native.quants_block32(fmt.type_id, address(raw), values, address(out))
    return out


def same_blocks(native: NDArray[np.void], form: IntegerBlocks) -> bool:
    mins = np.zeros_like(form.scales) if form.mins is None else form.mins
    dmin = np.zeros(len(native), np.float32) if form.dmin is None else form.dmin
    return (
        np.array_equal(native["code"], form.codes)
        and np.array_equal(native["scale"], form.scales)
        and same_bits(native["d"], form.d)
        and np.array_equal(native["min"], mins)
        and same_bits(native["dmin"], dmin)
    )


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_equal_the_integer_form(name: str, extreme: bool) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 600, seed=3, extreme=extreme)
    form = fmt.integer_form(raw, 1, 600 * fmt.block_values)
    assert same_blocks(native_blocks(fmt, raw), form)


@pytest.mark.parametrize("name", QUANTISED)
def test_every_byte_matters_and_is_caught(name: str) -> None:
    """Some flipped bit of any byte of a block shows in the comparison: no byte is ignored."""
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 1, seed=4)
    form = fmt.integer_form(raw, 1, fmt.block_values)
    for at in range(fmt.block_bytes):
        caught = False
        for bit in range(8):
            faulty = raw.copy()
            faulty[0, at] ^= 1 << bit
            caught |= not same_blocks(native_blocks(fmt, faulty), form)
        assert caught, f"byte {at}"


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_equals_decode(name: str, extreme: bool) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, 512, seed=5, extreme=extreme)
    out = np.empty(512 * fmt.block_values, np.float32)
    _native.quants_dequantize(fmt.type_id, address(raw), out.size, address(out))
    assert same_bits(out, fmt.decode(raw).reshape(-1))


def test_blocks_at_odd_addresses() -> None:
    for fmt in FORMATS.values():
        raw = random_blocks(fmt, 8, seed=6)
        shifted = np.concatenate([np.zeros(1, np.uint8), raw.reshape(-1)])
        out = np.empty(8 * fmt.block_values, np.float32)
        _native.quants_dequantize(fmt.type_id, address(shifted) + 1, out.size, address(out))
        assert same_bits(out, fmt.decode(raw).reshape(-1)), fmt.name


def round_to_float32(x: Fraction) -> np.float32:
    """Nearest float32, ties to even, of an exact number in the normal range or zero."""
    if x == 0:
        return np.float32(0)
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    ulp = Fraction(2) ** (exponent - 23)
    if abs(x) / ulp < 2**23:
        ulp /= 2
    elif abs(x) / ulp >= 2**24:
        ulp *= 2
    return np.float32(round(x / ulp) * ulp)  # round() of a Fraction takes ties to even


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return round_to_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def slow_chain(form: IntegerBlocks, codes: NDArray[np.int8], scales: NDArray[np.float32]) -> np.float32:
    """The contract's chain over blocks, written out (docs/contract.md): exact integers, one fma a term."""
    y = np.float32(0)
    for b, q in enumerate(codes.reshape(-1, 2, 16).astype(int)):
        d_a, d, scale = scales[b], form.d[b], form.scales[b]
        sums = [int((form.codes[b].reshape(2, 16)[h] * q[h]).sum()) for h in range(2)]
        if form.scale16:
            terms = [(sums[h], np.float32(d[h] * scale[h]) * d_a) for h in range(2)]
        elif form.halves:
            terms = [(sums[0] * int(scale[0]) + sums[1] * int(scale[1]), d[0] * d_a)]
        else:
            terms = [(sum(sums), np.float32(d[0] * scale[0]) * d_a)]
        if form.mins is not None and form.dmin is not None:
            small, codes_sum = form.mins[b], q.sum(axis=1)
            if form.halves:
                terms.append((int(small @ codes_sum), form.dmin[b] * d_a))
            else:
                terms.append((np.float32(codes_sum.sum()) * d_a, np.float32(form.dmin[b] * small[0])))
        for factor, weight in terms:
            y = fma(np.float32(factor), np.float32(weight), y)
    return y


@pytest.mark.parametrize("name", QUANTISED)
def test_dot32_is_the_contract_step(name: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(7)
    k = 512
    raw = random_blocks(fmt, k // fmt.block_values, seed=8)
    codes = rng.integers(-127, 128, k).astype(np.int8)
    sums = codes.reshape(-1, 16).sum(axis=1).astype(np.int16)
    scales = rng.uniform(0.001, 0.1, k // 32).astype(np.float32)
    form = fmt.integer_form(raw, 1, k)

    def native() -> np.float32:
        addresses = (address(codes), address(sums), address(scales))
        return np.float32(_native.quants_dot(fmt.type_id, address(raw), k, *addresses))

    want = slow_chain(form, codes, scales)
    assert native() == want
    real = fmt.decode(raw).reshape(-1).astype(np.float64) @ (codes * np.repeat(scales, 32).astype(np.float64))
    assert abs(native() - real) <= 1e-4 * np.abs(fmt.decode(raw)).max()
    codes[:256] = codes[255::-1].copy()  # the planted fault
    assert native() != want


def test_arguments_are_checked() -> None:
    out = np.zeros(256, np.float32)
    with pytest.raises(ValueError, match="quant type 5 is not in the table"):
        _native.quants_dequantize(5, address(out), 32, address(out))
    with pytest.raises(ValueError, match="quant type 0 is not in the table"):
        _native.quants_block32(0, address(out), 32, address(out))
    with pytest.raises(ValueError, match="33 values are not whole blocks of 32"):
        _native.quants_dequantize(2, address(out), 33, address(out))
    with pytest.raises(ValueError, match="address is null"):
        _native.quants_block32(2, 0, 32, address(out))


def test_committed_header_is_what_the_table_generates(pytestconfig: pytest.Config) -> None:
    committed = (pytestconfig.rootpath / "native/include/strata/quants_tables.h").read_text(encoding="ascii")
    assert committed == header_text()
    assert len(FORMATS_BY_ID) == len(FORMATS) == 27
