"""Stages 16 and 19: drafts on the full-size planted model, by how often they are right (the dial: `synth planted
--draft-agreement`, whose one matrix is changed in place), against none. 16, everything resident: what rows and passes
cost; alone and in batches. 19: on 24 GiB, at full link and with the link held to 22 GB/s."""

import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.common import SLOW, SMALLER, Report, backend_of, gpu_state, hold_link, memory, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.engine import Engine, Request, SamplingParams, Status
from strata.engine.drafts.decision import Decision
from strata.engine.drafts.speculation import Speculation
from strata.engine.load import LoadedModel
from strata.models import draft_vocab
from strata.quants.encode import encode_q8_0
from strata.synth import FULL, PlantedOptions
from strata.synth.planted import draft_input

TOKENS, WARM = sized((448, 64), (10, 2))
DIALS = sized((0, 50, 75, 90, 100), (75,))
BATCHES = sized((2, 4, 8), (2,))
TIERED = sized((None, 75, 100, 50, 0, None), (None, 75))
SKIPPED = sized(20, 2)  # steps before the median
# Ids of the target model's draft vocabulary (MODEL_SPEC.md). A planted text goes through the whole vocabulary, where a
# real one keeps to what its draft vocabulary covers; here that has the measured texts' tokens, and others.
VOCABULARY = sized(106_299, 400)
BACK = 24  # places between a wrong draft and where it was right


class Fixed:
    """So many drafts in every step; 0: none. Keeps what steps took."""

    def __init__(self, count: int):
        self.count = count
        self.took: list[tuple[float, ...]] = []

    def choose(self, reaches: Any, passes: int | None = None) -> list[int]:
        return [min(len(r), self.count, 32 // len(reaches) - 1) for r in reaches]

    def keep(self, reaches: Any, passes: int) -> list[int]:
        return self.choose(reaches)

    def saw_plain(self, sequences: int, ms: float) -> None:
        self.took.append((sequences, ms, 0, 0.0))

    def saw_drafted(
        self,
        sequences: int,
        rows: int,
        ms: float,
        chain: int,
        chain_ms: float,
        tokens: int,
        extra_ms: float = 0.0,
    ) -> None:
        self.took.append((rows, ms, chain, chain_ms))


def dial(percent: int) -> Any:
    """Keeps a draft with that chance, decided by its place in the text; what is wrong instead is a token of the same
    topic, the one some places back, for a wrong draft of a real layer is of the text's topic too."""

    def tamper(request: Request, drafts: list[int]) -> list[int]:
        text, at = request.output_token_ids, len(request.output_token_ids)
        kept = [zlib.crc32(b"%d" % (at + i)) % 100 < percent for i in range(len(drafts))]
        others = [text[-BACK + i] if at >= BACK else 0 for i in range(len(drafts))]
        wrong = [o if o != d else (d + 1) % 1000 for o, d in zip(others, drafts, strict=True)]
        return [d if k else w for d, w, k in zip(drafts, wrong, kept, strict=True)]

    return tamper


def agree(loaded: LoadedModel, percent: int) -> None:
    """From now on the draft layer is right with that chance: its join has so much noise beside the next token."""
    model: Any = loaded.runner.model
    weight, geometry = model.draft.join_proj, replace(FULL, vocab_size=model.config.vocab_size)
    geometry = replace(geometry, hidden_size=weight.shape[0])
    options = PlantedOptions(geometry, draft_agreement=percent / 100)
    values = draft_input(options, np.random.default_rng(3))
    backend_of(loaded)._weights.rewrite(weight, encode_q8_0(values.reshape(-1, 32)).reshape(-1))


def vocabulary(path: Path, cycle: list[int]) -> str:
    """A file for --draft-vocab."""
    held = dict.fromkeys(t for n in (1, *BATCHES) for text in texts(cycle, n) for t in text)
    held |= dict.fromkeys(range(VOCABULARY - len(held)))
    more = iter(range(len(cycle)))
    while len(held) < VOCABULARY:
        held[next(more)] = None
    to = Path(f"{path}.draft-vocab.json")
    draft_vocab.save(to, np.array(sorted(held), np.int64), len(cycle))
    return str(to)


def texts(cycle: list[int], sequences: int) -> list[list[int]]:
    """Of each sequence, the beginning and what follows it."""
    step = len(cycle) // (sequences + 1)
    return [(cycle + cycle)[i * step : i * step + 8 + 2 * TOKENS] for i in range(sequences)]


def start_anew(engine: Engine, decision: Fixed | None) -> Speculation:
    """Drafts of an engine that knows nothing of what was drafted; None: as many as the engine decides."""
    old = engine.scheduler.drafts
    assert old is not None
    drafts = Speculation(old.options)
    drafts.ahead, drafts.verifying, drafts.misses = old.ahead, old.verifying, old.misses
    if decision is not None:
        drafts.decision = decision
    engine.scheduler.drafts = drafts
    return drafts


def run_once(
    engine: Engine, cycle: list[int], sequences: int, decision: Fixed | None, tokens: int = TOKENS
) -> dict[str, Any]:
    """Texts of some sequences, and what was drafted; without a decision, also what the engine learned of costs."""
    drafts = start_anew(engine, decision)
    planted = texts(cycle, sequences)
    requests = [engine.add(t[:8], SamplingParams(max_tokens=tokens, ignore_eos=True)) for t in planted]
    begin, first = 0.0, 0
    while any(r.status is not Status.FINISHED for r in requests):
        engine.step()
        if not begin and all(len(r.output_token_ids) >= WARM for r in requests):
            begin, first = time.perf_counter(), sum(len(r.output_token_ids) for r in requests)
    seconds = time.perf_counter() - begin
    total = sum(len(r.output_token_ids) for r in requests)
    engine.forget()
    right = sum(r.output_token_ids == t[8 : 8 + tokens] for t, r in zip(planted, requests, strict=True))
    c = drafts.counts
    return {
        "tps": round((total - first) / seconds, 1),
        "right": right,
        "steps": c.steps,
        "drafted": c.drafted_steps,
        "mean_accepted": round(c.mean_accepted, 3),
        "at": [round(c.accepted_at[p] / c.proposed_at[p], 3) for p in sorted(c.proposed_at)],
        "text": zlib.crc32(repr([r.output_token_ids for r in requests]).encode()),
        **(costs(drafts.decision) if isinstance(drafts.decision, Decision) else {}),
    }


def costs(decision: Decision) -> dict[str, Any]:
    def rounded(ms: dict[int, float]) -> dict[int, float]:
        return {k: round(v, 3) for k, v in sorted(ms.items())}

    known = decision.costs
    return {
        "plain": rounded(known.plain.ms),
        "drafted": rounded(known._drafted.ms),
        "chain": rounded(known._chain.ms),
        "lost": round(decision.purse.lost, 2),
    }


def run(report: Report) -> None:
    path = model_file("planted.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()
    options = {"kv": "int8", "max_model_len": 4096, "max_num_seqs": 8, "draft_vocab": vocabulary(path, cycle)}
    with on_gpu(path, mtp="on", lookup="off", **options) as loaded:
        _measure(report, cycle, loaded)


def run_tiers(report: Report) -> None:
    """Stage 19."""
    path = model_file("planted.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()
    options = {"kv": "int8", "max_model_len": sized(4096, 256), "draft_vocab": vocabulary(path, cycle)}
    with on_gpu(path, mtp="on", lookup="off", **options, **SMALLER) as loaded:
        engine = Engine(loaded)
        report["memory"] = memory(loaded)
        loaded.runner.programs.prepare()
        agree(loaded, 100)
        run_once(engine, cycle, 1, Fixed(7), sized(256, 8))
        for link in (0.0, SLOW):
            if link:
                hold_link(loaded, link)
            agree(loaded, 75)
            _rows(report, engine, cycle, (0, 1, 3), f"link {link or 'full'}, ")
            found = report[f"link {link or 'full'}"] = []
            for percent in TIERED:
                decision = Fixed(0) if percent is None else None
                agree(loaded, percent or 0)
                one = run_once(engine, cycle, 1, decision)
                found.append((percent, one))
                say(f"24 GiB, link {link or 'full'}, dial {percent}: {one}")
    texts = {one["text"] for name in report if isinstance(report[name], list) for _, one in report[name]}
    report["texts equal"] = len(texts) == 1


def _rows(report: Report, engine: Engine, cycle: list[int], counts: Iterable[int], where: str) -> None:
    """What steps with so many drafts take, and the chains that make them."""
    for count in counts:
        fixed = Fixed(count)
        run_once(engine, cycle, 1, fixed, sized(256, 24))
        rows, ms, chain, chain_ms = (
            np.median(np.array(fixed.took[SKIPPED:] or fixed.took[-1:]), axis=0).round(3).tolist()
        )
        report[f"{where}rows {count + 1}"] = {"rows": rows, "ms": ms, "chain": chain, "chain_ms": chain_ms}
        say(f"{where}{count} drafts: {report[f'{where}rows {count + 1}']}")


def _measure(report: Report, cycle: list[int], loaded: LoadedModel) -> None:
    engine = Engine(loaded)
    loaded.runner.programs.prepare()
    agree(loaded, 100)
    run_once(engine, cycle, 1, Fixed(7), sized(128, 8))
    _rows(report, engine, cycle, range(8), "right, ")
    for percent in (None, *DIALS, None):
        decision = Fixed(0) if percent is None else None
        agree(loaded, percent or 0)
        found = run_once(engine, cycle, 1, decision)
        report.setdefault("alone", []).append((percent, found))
        say(f"dial {percent}: {found}")
    for sequences in BATCHES:
        for percent in sized((None, 75, 100, 0), (None, 75)):
            decision = Fixed(0) if percent is None else None
            agree(loaded, percent or 0)
            found = run_once(engine, cycle, sequences, decision, sized(256, 10))
            report.setdefault(str(sequences), []).append((percent, found))
            say(f"{sequences} sequences, dial {percent}: {found}")
    report["gpu"] = gpu_state()
