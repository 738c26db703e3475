"""The engine: a step is three verbs."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from strata.config import EngineOptions
from strata.engine.load import LoadedModel, load_model
from strata.engine.pieces import Cutter
from strata.engine.plan import StepOutput
from strata.engine.request import Request, SamplingParams, Status
from strata.engine.sample_inputs import check_sampling
from strata.engine.scheduler import Scheduler
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile
from strata.memory import Placement
from strata.memory.counters import read_counters
from strata.memory.expert_store import Progress
from strata.models import ModelConfig


@dataclass
class GenerationStats:
    """Engine rates of the last `generate`: the first token's time counts as prompt."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generation_seconds: float = 0.0


class Engine:
    """Owns the model and its requests; works on token ids alone."""

    def __init__(self, loaded: LoadedModel):
        self._loaded = loaded
        self._runner = loaded.runner
        self._scheduler = Scheduler(loaded.runner.limits.max_num_seqs, loaded.cutter)
        self._ids = count(1)
        self.stats = GenerationStats()

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: EngineOptions | None = None,
        draft: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "Engine":
        """Maps the file, plans memory, reads experts that leave the map (`progress` is told), lowers the programs."""
        draft_path = None if draft is None else Path(draft)
        return cls(load_model(Path(path), options or EngineOptions(), draft_path, progress=progress))

    @property
    def model_file(self) -> ModelFile:
        """The mapped file."""
        return self._loaded.file

    @property
    def model_config(self) -> ModelConfig:
        """The model's numbers."""
        return self._loaded.model.config

    @property
    def max_model_len(self) -> int:
        """Tokens a sequence can hold."""
        return self._runner.limits.max_model_len

    @property
    def num_pages(self) -> int:
        """KV pages in all."""
        return self._runner.pages.num_pages

    @property
    def num_free_pages(self) -> int:
        """KV pages that no sequence holds; those of ended requests count from the next step on."""
        return self._runner.pages.num_free

    @property
    def placement(self) -> Placement:
        """The memory plan."""
        return self._loaded.placement

    def tier_counts(self) -> dict[str, int]:
        """What the memory tiers have counted (memory/counters.py); empty where everything lies in the file's map."""
        experts = self._loaded.experts
        return {} if experts is None else read_counters(experts.counters)

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes that one decode row reads."""
        return self._loaded.weight_bytes_per_token

    @property
    def kv_bytes_per_cell(self) -> int:
        """Bytes of keys and values that one token of context keeps."""
        return self._loaded.kv_bytes_per_cell

    def step(self) -> StepOutput:
        """Schedule, run, update."""
        plan = self._scheduler.schedule()
        output = self._runner.run(plan)
        self._scheduler.update(output)
        return output

    def add(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> Request:
        """Queues a request; refused at once when it cannot fit."""
        self._check(prompt_token_ids)
        check_sampling(sampling, self.model_config.vocab_size)
        room = self.max_model_len - len(prompt_token_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt_token_ids)} tokens; a context of {self.max_model_len} holds at most "
                f"{self.max_model_len - 1} and one new token"
            )
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        request = Request(next(self._ids), prompt_token_ids, sampling)
        self._scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """Ends a request; its pages are free for the next step."""
        self._scheduler.abort(request)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[int, None, None]:
        """Sampled tokens of one request as they come; closing the iterator aborts it, as does `cancelled`, which is
        asked before each step."""
        request = self.add(prompt_token_ids, sampling)
        self.stats = GenerationStats(prompt_tokens=len(prompt_token_ids))
        started, first, told = perf_counter(), None, 0
        try:
            while request.status is not Status.FINISHED and not cancelled():
                self.step()
                fresh = request.output_token_ids[told:]
                now = perf_counter()
                if fresh and first is None:
                    first = now
                    self.stats.prompt_seconds = first - started
                elif first is not None:
                    self.stats.generated_tokens += len(fresh)
                    self.stats.generation_seconds = now - first
                told += len(fresh)
                yield from fresh
        finally:
            if request.status is not Status.FINISHED:
                self.abort(request)

    def logits(self, token_ids: Sequence[int], prefill: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Teacher-forced logits: float32 [n, vocab_size] pieces in order; `prefill` at most the option's."""
        self._check(token_ids)
        if len(token_ids) > self.max_model_len:
            raise ContextLengthError(f"{len(token_ids)} tokens; the context holds {self.max_model_len}")
        if self._scheduler.num_unfinished:
            raise UsageError("logits need an idle engine")
        return self._runner.logits(token_ids, self._cutter(prefill))

    def draft_logits(
        self, token_ids: Sequence[int], prefill: int | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Logits of the draft layer, [n, vocab_size] pieces of [tokens - 1, vocab_size]: row i from position i's rows
        of the trunk and token i + 1."""
        self._check(token_ids)
        if len(token_ids) > self.max_model_len:
            raise ContextLengthError(f"{len(token_ids)} tokens; the context holds {self.max_model_len}")
        if self._runner.drafter is None:
            raise UsageError("the engine was loaded without a draft layer")
        if self._scheduler.num_unfinished:
            raise UsageError("draft logits need an idle engine")
        return self._runner.draft_logits(token_ids, self._cutter(prefill))

    def _cutter(self, prefill: int | None) -> Cutter:
        loaded = self._loaded.cutter.prefill
        return Cutter(loaded if prefill is None else min(prefill, loaded))

    def _check(self, token_ids: Sequence[int]) -> None:
        if len(token_ids) == 0:
            raise UsageError("the prompt is empty; give at least one token")
        vocab = self.model_config.vocab_size
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= vocab:
            raise UsageError(f"token id {low if low < 0 else high} is outside the vocabulary of {vocab}")
