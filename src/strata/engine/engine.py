"""The engine: a step is three verbs."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter

from strata.config import EngineOptions, ServingOptions
from strata.engine.drafts import DraftReport
from strata.engine.load import LoadedModel, load_model
from strata.engine.pieces import Cutter
from strata.engine.plan import StepOutput
from strata.engine.pooling import Pooling
from strata.engine.request import Request, SamplingParams, Status, TokenMask
from strata.engine.sample_inputs import check_sampling
from strata.engine.session_store import UPKEEP_PAGES
from strata.engine.teacher import Pieces, Teacher
from strata.engine.waiting import QueuePlace
from strata.errors import ContextLengthError, UsageError
from strata.gguf import ModelFile
from strata.memory import Placement
from strata.memory.expert_store import Progress
from strata.memory.resident import read_kv_counts
from strata.models import ModelConfig

_BUSY_UPKEEP = 2  # pages handed to the disk in a step that computes
_WAIT_FOR_DISK = 0.02  # seconds that an idle step waits for the writer


@dataclass
class GenerationStats:
    """Engine rates of the last `generate`: the first token's time counts as prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, by prefix reuse
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generation_seconds: float = 0.0


class Engine:
    """Owns the model and its requests; works on token ids alone."""

    def __init__(self, loaded: LoadedModel):
        self._loaded = loaded
        self._runner, self._store = loaded.runner, loaded.around.store
        self.scheduler = loaded.around.scheduler
        self._ids = count(1)
        self.stats = GenerationStats()

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: EngineOptions | None = None,
        draft: str | Path | None = None,
        serving: ServingOptions | None = None,
        progress: Progress | None = None,
    ) -> "Engine":
        """Maps the file, plans memory, reads experts that leave the map (`progress` is told), lowers the programs."""
        draft_path = None if draft is None else Path(draft)
        chosen = options or EngineOptions()
        loaded = load_model(Path(path), chosen, draft_path, serving=serving, progress=progress)
        loaded.runner.programs.prepare()
        return cls(loaded)

    @property
    def model_file(self) -> ModelFile:
        """The mapped file."""
        return self._loaded.file

    @property
    def model_config(self) -> ModelConfig:
        """The model's numbers."""
        return self._loaded.model.config

    @property
    def embedding_width(self) -> int:
        """Values of an embedding."""
        return int(self._runner.programs.of("step", 1).features[0].shape[1])

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
        """KV pages that no sequence holds; sessions give theirs up when they are needed."""
        return self.num_pages - self._runner.pages.num_in_use

    @property
    def session_ram_bytes(self) -> int:
        """Bytes of RAM that sessions and preempted sequences take besides the KV pool; for the engine's thread."""
        return self._store.ram_bytes

    @property
    def placement(self) -> Placement:
        """The memory plan."""
        return self._loaded.placement

    def tier_counts(self) -> dict[str, int]:
        """What the memory tiers have counted (memory/counters.py); empty where everything lies in the file's map."""
        runner = self._runner
        return self._loaded.tier_counts() | read_kv_counts(runner.state.kv, runner.backend.array)

    @property
    def drafts(self) -> DraftReport:
        """What drafts, why, and how it fared so far."""
        return self._loaded.drafts

    @property
    def session_disk_bytes(self) -> int:
        """Bytes of session files."""
        return self._store.disk_bytes

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes that one decode row reads."""
        return self._loaded.weight_bytes_per_token

    @property
    def kv_bytes_per_cell(self) -> int:
        """Bytes of keys and values that one token of context keeps."""
        return self._loaded.kv_bytes_per_cell

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do: requests, or upkeep of what they left."""
        return self.scheduler.num_unfinished > 0 or self._store.pending

    def step(self) -> StepOutput:
        """Schedule, run, update; and a little of the sessions' upkeep, more when there is nothing else."""
        plan = self.scheduler.schedule()
        output = self._runner.run(plan)
        self.scheduler.update(output)
        if plan.idle and self.scheduler.num_waiting:
            self._store.wait_for_reads(_WAIT_FOR_DISK)
        if self._store.pending:
            self._upkeep()
        return output

    def _upkeep(self) -> None:
        if self.scheduler.num_unfinished:
            self._store.upkeep(_BUSY_UPKEEP)
        else:
            self._store.wait_for_disk(_WAIT_FOR_DISK)
            self._store.upkeep(UPKEEP_PAGES)

    def forget(self) -> None:
        """Lets all sessions go, so that the next prompt is read from its beginning."""
        self._store.forget_all()

    def close(self) -> None:
        """Ends all requests and writes what sessions have to write; the engine cannot step afterwards."""
        for request in self.scheduler.open_requests:
            self.abort(request)
        self._store.close()
        self._loaded.stop_policy()
        self._runner.backend.close()

    def abandon(self) -> None:
        """After a DeviceError: gives back what can be given back, and reads nothing of the device."""
        self._store.abandon()
        self._loaded.stop_policy()
        self._runner.backend.close()

    def queue_place(self, request: Request) -> QueuePlace | None:
        """Where a waiting request stands; None when it waits no more."""
        return self.scheduler.place(request)

    def add(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        client: str = "",
        mask: TokenMask | None = None,
        cache_points: Sequence[int] = (),
        images: Sequence[tuple[int, bytes]] = (),
        pooling: Pooling | None = None,
    ) -> Request:
        """Queues a request; refused at once when it cannot fit (ContextLengthError) or a limit on open requests is met
        (BusyError). The other arguments: see Request."""
        self._check(prompt_token_ids)
        check_sampling(sampling, self.model_config.vocab_size)
        room = self.max_model_len - len(prompt_token_ids)
        if room < 0:
            raise ContextLengthError(
                f"the prompt has {len(prompt_token_ids)} tokens; a context holds at most {self.max_model_len}"
            )
        # the last token that is sampled needs no cell: a prompt that fills the context has an answer of one
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, max(room, 1)))
        request = Request(
            next(self._ids),
            prompt_token_ids,
            sampling,
            client,
            mask,
            tuple(cache_points),
            tuple(images),
            pooling,
        )
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """Ends a request; its pages are free for the next step."""
        self.scheduler.abort(request)

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
                    self.stats.cached_tokens = request.num_cached_tokens
                elif first is not None:
                    self.stats.generated_tokens += len(fresh)
                    self.stats.generation_seconds = now - first
                told += len(fresh)
                yield from fresh
        finally:
            if request.status is not Status.FINISHED:
                self.abort(request)
        if request.error is not None:
            raise request.error

    def logits(self, token_ids: Sequence[int], prefill: int | None = None) -> Pieces:
        """Teacher-forced logits: float32 [n, vocab_size] pieces in order; `prefill` at most the option's."""
        return self._teacher(token_ids, "logits").logits(token_ids, self._cutter(prefill))

    def draft_logits(self, token_ids: Sequence[int], prefill: int | None = None) -> Pieces:
        """Logits of the draft layer, [n, vocab_size] pieces of [tokens - 1, vocab_size]: row i from position i's rows
        of the trunk and token i + 1."""
        teacher = self._teacher(token_ids, "draft logits")
        if self._runner.programs.drafter is None:
            raise UsageError("the engine was loaded without a draft layer")
        return teacher.draft_logits(token_ids, self._cutter(prefill))

    def _teacher(self, token_ids: Sequence[int], what: str) -> Teacher:
        self._check(token_ids)
        if len(token_ids) > self.max_model_len:
            raise ContextLengthError(f"{len(token_ids)} tokens; the context holds {self.max_model_len}")
        if self.scheduler.num_unfinished:
            raise UsageError(f"{what} need an idle engine")
        self._store.make_room(self._runner.pages.missing(0, len(token_ids)))
        return Teacher(self._runner)

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
