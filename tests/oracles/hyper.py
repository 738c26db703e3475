"""Hyper-connections: the residual is several streams, mixed before a sublayer and injected into after it."""

from oracles.model import Array, Model, sigmoid, silu
from oracles.norms import grouped_norm


def read(model: Model, prefix: str, residual: Array) -> Array:
    """residual [tokens, count * hidden] to the sublayer's input [tokens, hidden]."""
    count = int(model.key("hyper_connection.count"))
    normed = grouped_norm(residual, model[prefix + "norm.weight"], count, model.eps)
    low = silu(normed @ model[prefix + "down.weight"].T / count)
    gate = sigmoid(low @ model[prefix + "up.weight"].T)
    return (gate * normed).reshape(len(residual), count, -1).mean(1)


def write(model: Model, prefix: str, residual: Array, y: Array) -> Array:
    """The residual with y [tokens, hidden] injected into every stream by its own weight, 0 to 2."""
    count = int(model.key("hyper_connection.count"))
    normed = grouped_norm(residual, model[prefix + "norm.weight"], count, model.eps)
    inject = 2 * sigmoid(normed @ model[prefix + "inject.weight"].T / count)
    return residual + (inject[:, :, None] * y[:, None]).reshape(residual.shape)
