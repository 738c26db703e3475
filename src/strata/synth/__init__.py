"""Made-up models: tiny ones of any family, planted full-size ones, and dense ones for speed."""

from strata.synth.dense import DENSE, DenseOptions, write_dense
from strata.synth.geometry import ARCHITECTURES, FULL, SIZES, Geometry, ngram_base_for, tiny_geometry
from strata.synth.layout import PLANES
from strata.synth.planted import PlantedOptions, Written, write_planted
from strata.synth.tiny import TinyOptions, uniform_types, write_tiny

__all__ = [
    "ARCHITECTURES",
    "DENSE",
    "FULL",
    "PLANES",
    "SIZES",
    "DenseOptions",
    "Geometry",
    "PlantedOptions",
    "TinyOptions",
    "Written",
    "ngram_base_for",
    "tiny_geometry",
    "uniform_types",
    "write_dense",
    "write_planted",
    "write_tiny",
]
