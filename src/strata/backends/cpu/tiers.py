"""What a backend is told of weights that do not lie in the model file's map, and the records that go through them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata import _native
from strata.backends.cpu.lower import Addresses, Record, lower
from strata.ops.buffers import Weight
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.linear import LinearF, LinearQ
from strata.ops.ngram import NgramRows, TableRows
from strata.ops.op import Op
from strata.ops.program import Program
from strata.ops.router import Router


@dataclass(frozen=True)
class ExpertTiers:
    """Routed experts in a store."""

    store: _native.ExpertStore
    counters: _native.TierCounters
    layers: Mapping[Weight, int]  # gate stack -> layer of the store
    tables: Mapping[Weight, NDArray[np.uint64]]  # stack -> where its experts are [num_experts]
    blob_bytes: tuple[int, ...]  # of one expert of each layer, its planes padded to 64 bytes
    whole: bool  # every expert stays in RAM
    wait_limit_ns: int
    lookahead: bool
    guesses: _native.Guesses  # what look-ahead guessed, of all programs
    stacks: tuple[tuple[Weight, Weight, Weight], ...] = ()  # gate, up, down of each layer


@dataclass(frozen=True)
class Tiers:
    """All of it. `resident`: a weight's bytes where they are to be used; None: in the file's map."""

    experts: ExpertTiers | None = None
    ngram: Mapping[Weight, _native.NgramStore] = field(default_factory=dict)
    resident: Callable[[Weight], NDArray[np.uint8]] | None = None

    def failure(self) -> str:
        """What the last failed read was."""
        texts = [] if self.experts is None else [self.experts.store.failure()]
        texts += [store.failure() for store in self.ngram.values()]
        return "; ".join(text for text in texts if text)


class TierLowering:
    """Lowers the ops of one program that work through the stores; the others are left to the CPU's rules."""

    def __init__(self, tiers: Tiers, pool: _native.ThreadPool, program: Program, at: Addresses):
        self._experts, self._ngram, self._pool, self._at = tiers.experts, tiers.ngram, pool, at
        self._rows = program.bucket
        self._gate_up: Record | None = None
        self._layer = 0
        self._index_of = {op.index: op.weight for op in program.ops if isinstance(op, TableRows)}
        self._boxes: dict[Weight, _native.NgramBox] = {}
        self._ahead: Mapping[Op, tuple[LinearF | LinearQ, Weight, int]] = {}
        if self._experts is not None:
            self._guesses = self._experts.guesses
            if self._experts.lookahead and not self._experts.whole:
                self._ahead = _products_ahead(program)

    def add(self, native: _native.Program, op: Op) -> None:
        """Appends the records of an op."""
        if isinstance(op, ExpertGateUp | ExpertDown) and self._moved():
            self._add_experts(native, op)
        elif isinstance(op, TableRows) and op.weight in self._ngram:
            record = lower(op, self._at._replace(weight=lambda _: 0))  # the store gives the rows
            native.add_tier(_native.NgramTake(self._ngram[op.weight], self._boxes[op.weight], record[:3]))
        else:
            native.add(*lower(op, self._at))
        if op in self._ahead:
            native.add_tier(self._lookahead(op, *self._ahead[op]))
        if isinstance(op, NgramRows) and op.out in self._index_of:
            self._post_ngrams(native, op, self._index_of[op.out])

    def _moved(self) -> bool:
        """Whether experts have no fixed place."""
        return self._experts is not None and not self._experts.whole

    def _add_experts(self, native: _native.Program, op: ExpertGateUp | ExpertDown) -> None:
        assert self._experts is not None
        if isinstance(op, ExpertGateUp):
            self._gate_up, self._layer = lower(op, self._at), self._experts.layers[op.gate]
        else:
            assert self._gate_up is not None, "expert_down follows its expert_gate_up"
            native.add_tier(self._expert_record(self._experts, self._gate_up, lower(op, self._at)))

    def _expert_record(self, experts: ExpertTiers, gate_up: Record, down: Record) -> Any:
        limit = experts.wait_limit_ns
        return _native.DiskExperts(
            self._pool, experts.store, self._guesses, self._layer, gate_up[:3], down[:3], limit
        )

    def _post_ngrams(self, native: _native.Program, op: NgramRows, table: Weight) -> None:
        if table in self._ngram:
            rows, heads = op.out.shape
            self._boxes[table] = self._ngram[table].add_box(rows * heads)
            live, ids = self._at.live(op.out), self._at.buffer(op.out)
            native.add_tier(_native.NgramPost(self._ngram[table], self._boxes[table], live, ids, heads))

    def _lookahead(
        self, op: Op, following: LinearF | LinearQ, stack: Weight, k: int
    ) -> _native.LookaheadStep:
        assert self._experts is not None
        kernel, ptrs, dims, _ = lower(op, self._at)
        ptrs[-2] = self._at.weight(following.weight)  # this layer's rows, the next layer's router
        num_experts = following.weight.shape[0]
        record = (kernel, ptrs, [following.weight.format.type_id, dims[1], num_experts])
        layer, store = self._experts.layers[stack], self._experts.store
        return _native.LookaheadStep(
            self._pool, store, self._guesses, record, layer, num_experts, k, self._rows
        )


def _products_ahead(program: Program) -> dict[Op, tuple[LinearF | LinearQ, Weight, int]]:
    """Each router's product but the last: the next router's product, its layer's gate stack, its experts a token."""
    routers: list[tuple[LinearF | LinearQ, Weight, int]] = []
    products = {op.out: op for op in program.ops if isinstance(op, LinearF | LinearQ)}
    k, product = 0, None
    for op in program.ops:
        if isinstance(op, Router):
            product, k = products.get(op.logits), op.topk_ids.shape[-1]
        elif isinstance(op, ExpertGateUp) and product is not None:
            routers.append((product, op.gate, k))
    return {
        here[0]: after
        for here, after in pairwise(routers)
        if type(here[0]) is type(after[0]) and here[0].weight.shape[1] == after[0].weight.shape[1]
    }
