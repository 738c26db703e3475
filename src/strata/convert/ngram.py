"""Constants of the n-gram hash, as training derives them (transformers 5.24.0, models/qwen4_exp)."""

from math import isqrt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _splitmix64(value: int) -> int:
    """One output of SplitMix64 (Steele, Lea and Flood 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def layer_multipliers(vocab_size: int, ngram_size: int, seed: int) -> list[int]:
    """Odd multipliers, one per token of an n-gram, small enough that token times multiplier fits 63 bits."""
    half = max(1, (2**63 - 1) // vocab_size // 2)
    return [2 * (_splitmix64((seed + _GAMMA * (i + 1)) & _MASK) % half) + 1 for i in range(ngram_size)]


def head_sizes(base: int, heads: int) -> list[int]:
    """The first primes from `base` on: rows of each head."""
    found: list[int] = []
    number = base
    while len(found) < heads:
        if _is_prime(number):
            found.append(number)
        number += 1
    return found


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
