"""Text in and out: tokenizer, incremental detokenizer, stop strings."""

from strata.text.detokenizer import Detokenizer
from strata.text.stops import StopMatcher
from strata.text.stream import TextStream
from strata.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "StopMatcher", "TextStream", "Tokenizer"]
