"""Plain forwards of every architecture, written from formulas for tests: no cache, no batches, no kernels."""

from oracles.draft import draft_logits
from oracles.forward import logits, trunk
from oracles.model import Model
from oracles.trace import Gap, nrmse

__all__ = ["Gap", "Model", "draft_logits", "logits", "nrmse", "trunk"]
