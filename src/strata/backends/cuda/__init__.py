"""The CUDA backend: op records become kernel launches, recorded once as graphs and replayed."""

from strata.backends.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
