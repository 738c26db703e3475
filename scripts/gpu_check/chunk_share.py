"""Of stage 17: whether CPU workers pay that take experts which a narrow prompt chunk lacks. One loaded model reads
the same texts in turns, with the launches of shared chunks and without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check.common import Report, backend_of, say
from gpu_check.prompt_times import answer_digest
from gpu_check.rehearsal import sized
from gpu_check.settings import setting
from strata.bench.prompts import PromptProbe, PromptTime, text_of
from strata.engine import Engine
from strata.engine.load import LoadedModel

OFF = "all copied"
SHARES = {"by costs": -1.0, **{f"{share:g}": share for share in sized((0.25,), (0.5,))}}
LENGTHS, TURNS = sized((64, 256), (64,)), sized(4, 1)
TEXT = 1 << 20
ROWS = sized(256, 64)  # of the widest chunk program that is looked at


class SharedChunks:
    """Of a model that was loaded with chunks that share by costs."""

    def __init__(self, loaded: LoadedModel, path: Path):
        self._engine, self._programs = Engine(loaded), loaded.runner.programs
        backend = backend_of(loaded)
        assert backend.tier is not None and backend.tier.prompts is not None
        prompts = backend.tier.prompts
        assert prompts.share is not None
        self._device = prompts.share.device
        self._shared = self._programs.chunks
        with setting(prompts, "share", None):
            self._plain = tuple(
                replace(c, replay=backend.lower(c.program, "chunk")) if c.program.bucket <= ROWS else c
                for c in self._shared
            )
        self._text = text_of(path, self._engine.model_config.vocab_size, TEXT)
        self.last: dict[str, PromptTime] = {}  # by choice

    def choices(self, tokens: int) -> dict[str, Callable[[int], float]]:
        """Tokens a second of a prompt of so many, by how its chunk gets its experts."""
        return {name: lambda turn, name=name: self._tps(name, tokens, turn) for name in (OFF, *SHARES)}

    def equal(self) -> bool:
        """Whether an answer has the same logits in every way."""
        text = self._text[: max(LENGTHS) + 1].tolist()
        found = set()
        for name in (OFF, *SHARES):
            self._choose(name)
            self._engine.forget()
            found.add(answer_digest(self._engine, text))
        return len(found) == 1

    def _tps(self, name: str, tokens: int, turn: int) -> float:
        self._choose(name)
        probe = PromptProbe(self._engine, self._text[turn * max(LENGTHS) :])
        self.last[name] = probe.first_token(tokens)
        return self.last[name].tps

    def _choose(self, name: str) -> None:
        self._programs.chunks = self._plain if name == OFF else self._shared
        self._device.set_share(SHARES.get(name, 0.0))


def run(loaded: LoadedModel, path: Path, compare: Callable[..., Report]) -> Report:
    """By length who wins, and what was copied and computed in the last turn."""
    chunks = SharedChunks(loaded, path)
    found: dict[str, Any] = {"equal": chunks.equal()}
    say(f"shared chunks: equal {found['equal']}")
    for tokens in LENGTHS:
        choices = chunks.choices(tokens)
        for name in (OFF, *SHARES):
            choices[name](TURNS)  # graphs are made where they are first wanted
        found[str(tokens)] = compare(f"prompts of {tokens}", choices, OFF, TURNS)
        moved = {name: [t.seconds, t.link_bytes, t.cpu_experts] for name, t in chunks.last.items()}
        found[f"{tokens}: seconds, bytes sent, experts by the CPU"] = moved
        say(f"prompts of {tokens}, seconds, bytes sent, experts by the CPU: {moved}")
    return found
