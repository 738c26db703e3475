"""Strata: runs mixture-of-experts language models far larger than the GPU."""

__version__ = "0.1.0"
