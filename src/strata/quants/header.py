"""The text of native/include/strata/quants_tables.h; scripts/generate_quants.py writes it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.quants.formats import FORMATS, Format
from strata.quants.tables import E2M1_DOUBLED, GRID_NAMES, IQ4_VALUES, POWERS_OF_3, grid

_PREAMBLE = """\
// Written by scripts/generate_quants.py from src/strata/quants; do not edit.
// Origin and licence of the grids: src/strata/quants/grids.md.
#pragma once

#include "strata/contract.h"

// A constant table that device code may index at run time (NVRTC, cubins; nvcc's host half cannot read it).
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define STRATA_TABLE static __device__ const
#else
#define STRATA_TABLE inline constexpr
#endif
"""


def _type_list(macro: str, formats: list[Format]) -> str:
    rows = [
        f"X({f.name}, {f.type_id}, {f.block_values}, {f.block_bytes}, "
        f"{int(f.has_min)}, {int(f.halves)}, {int(f.scale16)})"
        for f in formats
    ]
    return f"#define {macro}(X) \\\n  " + " \\\n  ".join(rows) + "\n"


def _table(ctype: str, name: str, items: list[str], per_line: int) -> str:
    lines = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return f"STRATA_TABLE {ctype} {name}[{len(items)}] = {{\n    " + ",\n    ".join(lines) + "};\n"


def _numbers(ctype: str, name: str, values: NDArray[Any]) -> str:
    return _table(ctype, name, [str(v) for v in values.tolist()], 16)


def _grid(name: str) -> str:
    """A grid as one word an entry, value j in byte j; IQ1_S holds 8 times its values, ready for +/- 1."""
    values = grid(name) * np.int8(8 if name == "IQ1_S" else 1)
    width = values.shape[1]
    words = np.ascontiguousarray(values).view(f"<u{width}").reshape(-1)
    suffix = "ull" if width == 8 else "u"
    items = [f"0x{word:0{2 * width}x}{suffix}" for word in words.tolist()]
    title = "".join(part.capitalize() for part in name.split("_"))
    return _table(f"uint{8 * width}_t", f"kGrid{title}", items, 5 if width == 8 else 8)


def header_text() -> str:
    """The whole header: type lists, codebooks, grids."""
    plain = [f for f in FORMATS.values() if not f.quantised]
    quantised = [f for f in FORMATS.values() if f.quantised]
    return "\n".join(
        [
            _PREAMBLE,
            "// X(name, GGML id, values and bytes of a block, has_min, halves, scale16)",
            _type_list("STRATA_FLOAT_TYPES", plain),
            _type_list("STRATA_QUANTISED_TYPES", quantised),
            "namespace strata {\n",
            _numbers("int8_t", "kIq4Values", IQ4_VALUES),
            _numbers("int8_t", "kE2m1Doubled", E2M1_DOUBLED),
            _numbers("uint8_t", "kPowersOf3", POWERS_OF_3),
            *(_grid(name) for name in GRID_NAMES),
            "}  // namespace strata\n",
        ]
    )
