"""Block formats: one table, with decode, encode, the contract's integer form and the native header."""

from strata.quants.formats import FORMATS, FORMATS_BY_ID, Format, IntegerBlocks

__all__ = ["FORMATS", "FORMATS_BY_ID", "Format", "IntegerBlocks"]
