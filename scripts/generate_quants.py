"""Rewrites the native header generated from the table of block formats."""

from pathlib import Path

from strata.quants.header import header_text

HEADER = Path(__file__).resolve().parent.parent / "native" / "include" / "strata" / "quants_tables.h"

if __name__ == "__main__":
    HEADER.write_text(header_text(), encoding="ascii")
