"""What may come next in one answer: the engine asks before each token and tells what it chose."""

import numpy as np
from numpy.typing import NDArray

from strata.text.grammar.compiler import Grammar, GrammarCompiler
from strata.text.grammar.gate import ReasoningGate


class TokenConstraint:
    """A grammar (none: only the gate acts), which holds once the gate (none: at once) is open."""

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar | None, gate: ReasoningGate | None):
        self._compiler, self._grammar, self._gate = compiler, grammar, gate

    def fill(self, allowed: NDArray[np.int32]) -> None:
        """Writes the mask i32 [ceil(vocab / 32)] of the next token, bit set: it may come."""
        if self._gate is not None and not self._gate.open:
            self._fill_thinking(allowed, self._gate.forced)
        elif self._grammar is None:
            allowed[:] = -1
        else:
            self._grammar.fill(allowed)

    def _fill_thinking(self, allowed: NDArray[np.int32], forced: int | None) -> None:
        """Anything goes, but where a grammar waits the answer may not end before it."""
        bits = allowed.view(np.uint32)
        if forced is not None:
            bits[:] = 0
            bits[forced // 32] = 1 << forced % 32
            return
        bits[:] = 0xFFFFFFFF
        for end in self._compiler.eos_ids if self._grammar is not None else ():
            bits[end // 32] &= ~np.uint32(1 << end % 32)

    def accept(self, token_id: int) -> None:
        """Takes a sampled token in; FaultError where the grammar does not allow it."""
        if self._gate is not None and not self._gate.open:
            content = self._gate.accept(token_id)
            if self._grammar is not None:
                for token in self._compiler.encode(content) if content else ():
                    self._grammar.accept(token)
        elif self._grammar is not None:
            self._grammar.accept(token_id)
