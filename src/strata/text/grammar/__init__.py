"""Constrained decoding: grammars to token masks, and when they hold."""

from strata.text.grammar.calls import CallRules, call_grammar
from strata.text.grammar.compiler import Grammar, GrammarCompiler
from strata.text.grammar.constraint import TokenConstraint
from strata.text.grammar.gate import ReasoningGate
from strata.text.grammar.sources import (
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)

__all__ = [
    "CallRules",
    "Grammar",
    "GrammarCompiler",
    "ReasoningGate",
    "TokenConstraint",
    "call_grammar",
    "choice_grammar",
    "json_grammar",
    "lark_grammar",
    "regex_grammar",
]
