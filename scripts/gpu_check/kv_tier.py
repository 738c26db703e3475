"""Stage 8: keys and values beyond their budget, 8 planted layers. Formats of 4 bits against the CPU; one hash for every
budget in filled contexts; hits in a context that was really read, beside other policies' on the same selections; what a
step costs."""

import hashlib
import time
from collections import OrderedDict
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.common import Decoder, Report, backend_of, fill, on_gpu, same_logits, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.engine.load import LoadedModel
from strata.engine.plan import ScheduledRows
from strata.memory.resident import read_kv_counts, residents
from strata.ops.kv_fetch import HEAD, KvFetch

CONTEXT, READ, DECODED, WARM = sized((262144, 245760, 1024, 512), (2048, 1120, 4, 2))
RESIDENT = sized(32768, 1024)
BUDGETS = sized((0, 32768, 20480), (0, 1536, 1024))
SHARED, FILLED, STEPS = sized((65536, 60000, 24), (2048, 600, 3))  # of four sequences in one pool
TOLD = sized(49152, 1120)  # tokens between two lines
SELECTIONS = Path("build/gpu-check/selections.npz")  # groups by layer and step, for other policies


def run(report: Report) -> None:
    few = model_file("planted-8-few.gguf")
    report["read"] = _read_context(few, np.load(f"{few}.cycle.npy").tolist())
    with on_gpu(few, kv="int8", max_model_len=CONTEXT) as loaded:
        report["all resident"] = _step(loaded, READ + DECODED)
    planted = model_file("planted-8.gguf")
    report["budgets"] = {str(n): _filled(planted, n) for n in BUDGETS}
    report["budgets equal"] = len({r["hash"] for r in report["budgets"].values()}) == 1
    say(f"budgets: {report['budgets']}")
    cycle = np.load(f"{planted}.cycle.npy").tolist()
    for kv in ("k8v4", "q4"):
        report[f"planted {kv}"] = same_logits(planted, cycle[: sized(48, 4)], kv=kv, max_model_len=1024)
        say(f"planted, {kv}: {report[f'planted {kv}']}")


def _filled(path: Path, resident: int) -> dict[str, Any]:
    """Four sequences that share the pool, pseudo-random cells each: SHA-256 of some steps' logits."""
    with on_gpu(path, kv="int8", max_model_len=SHARED, max_num_seqs=4, kv_resident=resident) as loaded:
        decoder, found = Decoder(loaded, 4), hashlib.sha256()
        fill(loaded, FILLED)
        for i in range(STEPS):
            decoder.step(FILLED + i)
            found.update(np.asarray(loaded.runner.backend.array(loaded.runner.programs.logits)[:4]).tobytes())
        return {"hash": found.hexdigest()[:16], **_counts(loaded)}


def _counts(loaded: LoadedModel) -> dict[str, int]:
    return read_kv_counts(loaded.runner.state.kv, loaded.runner.backend.array)


def _rate(before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    n = {name: after[name] - before[name] for name in after}
    asked = n["kv_hits"] + n["kv_fetches"] + n["kv_streamed"]
    return {"hit_rate": round(n["kv_hits"] / asked, 5), **n}


def _read_context(path: Path, cycle: list[int]) -> dict[str, Any]:
    """A context read with 32 rows a step, then one row a step whose selections are recorded, then rates."""
    with on_gpu(path, kv="int8", max_model_len=CONTEXT, kv_resident=RESIDENT) as loaded:
        text = np.resize(cycle, READ + DECODED).tolist()
        found: dict[str, Any] = {"reading": _read(loaded, text)}
        recorder = Recorder(loaded)
        held = recorder.resident()
        before = _counts(loaded)
        for i in range(DECODED):
            if i == WARM:
                before = _counts(loaded)
            _compute(loaded, READ + i, text[READ + i : READ + i + 1])
        found["decoding"] = _rate(before, _counts(loaded))
        found["others"] = {
            name: _share(policy, recorder.wanted, held)
            for name, policy in (("lru", lru), ("clairvoyant", best))
        }
        say(f"decoding at {READ + WARM}: {found['decoding']}, others: {found['others']}")
        SELECTIONS.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(SELECTIONS, *[_table(steps) for steps in recorder.wanted], *map(np.array, held))
        recorder.end()
        return found | _step(loaded, READ + DECODED, filled=False)


def _read(loaded: LoadedModel, text: list[int]) -> list[dict[str, Any]]:
    """What the tier counted while the context was read, piece by piece."""
    found = []
    begin, before = time.perf_counter(), _counts(loaded)
    for position in range(0, READ, 32):
        _compute(loaded, position, text[position : position + 32])
        if (position + 32) % TOLD == 0:
            after = _counts(loaded)
            found.append({"to": position + 32, **_rate(before, after)})
            before = after
            say(f"{position + 32} read in {time.perf_counter() - begin:.1f} s: {found[-1]}")
    return found


def _compute(loaded: LoadedModel, position: int, tokens: list[int]) -> None:
    """Known tokens of sequence 0, without logits."""
    runner = loaded.runner
    runner.keeper.grow(0, position + len(tokens))
    runner.write("step", ScheduledRows(-1, 0, position, tokens, sampled=False))
    runner.programs.of("step", len(tokens)).run_trunk()
    runner.commit({0: len(tokens)})


class Recorder:
    """Steps of one row run in parts, so that every layer's selection can be read."""

    def __init__(self, loaded: LoadedModel):
        self._loaded, self._backend = loaded, backend_of(loaded)
        lowered = loaded.runner.programs.of("step", 1)
        self._ops = [(i, op) for i, op in enumerate(lowered.program.ops) if isinstance(op, KvFetch)]
        nodes = [n for n in lowered.replay.launches if n.kernel.entry == "kv_resolve"]  # type: ignore[attr-defined]
        self._addresses = [int(n.args[4]) for n in nodes]
        self.wanted: list[list[list[int]]] = [[] for _ in self._ops]
        self._replay, self._run = lowered.replay, lowered.replay.run
        lowered.replay.run = self._parts  # type: ignore[method-assign]

    def end(self) -> None:
        """Steps run whole again."""
        self._replay.run = self._run  # type: ignore[method-assign]

    def _parts(self, begin: int = 0, end: int | None = None) -> None:
        for layer, (i, op) in enumerate(self._ops):
            self._run(begin, i)
            self.wanted[layer].append(self._groups(op, self._addresses[layer]))
            begin = i
        self._run(begin, end)

    def _groups(self, op: KvFetch, address: int) -> list[int]:
        chosen = np.empty(op.selected.shape[-1], np.int32)
        self._backend.driver.download(address, chosen)
        position = int(self._backend.array(op.positions)[0])
        blocks = chosen.tolist() + ([position // op.ratio] if (position + 1) % op.ratio else [])
        pages, per_page = self._backend.array(op.page_table)[0], 64 // op.ratio
        return [int(pages[b // per_page]) * per_page + b % per_page for b in blocks]

    def resident(self) -> list[list[int]]:
        """Groups in slots by layer, the longest unused first."""
        found = []
        for r in residents(self._loaded.runner.state.kv):
            owners, used, _ = np.asarray(self._backend.array(r.clock))[HEAD:].reshape(3, -1)
            found.append([int(owners[s]) - 1 for s in np.argsort(used, kind="stable") if owners[s]])
        return found


def _table(steps: list[list[int]]) -> np.ndarray:
    """i32 [steps, most groups], -1 where a step has fewer."""
    table = np.full((len(steps), max(map(len, steps))), -1, np.int32)
    for row, groups in zip(table, steps, strict=True):
        row[: len(groups)] = groups
    return table


def _share(policy: Any, wanted: list[list[list[int]]], held: list[list[int]]) -> float:
    """Hits of the steps after WARM."""
    counts = [policy(steps, first, RESIDENT // 4) for steps, first in zip(wanted, held, strict=True)]
    return round(sum(h for h, _ in counts) / sum(n for _, n in counts), 5)


def lru(steps: list[list[int]], held: list[int], slots: int) -> tuple[int, int]:
    """(hits, asked) where the least recently used group goes."""
    there, hits, asked = OrderedDict.fromkeys(held), 0, 0
    for i, groups in enumerate(steps):
        hits, asked = hits + (i >= WARM) * sum(g in there for g in groups), asked + (i >= WARM) * len(groups)
        for g in groups:
            there[g] = None
            there.move_to_end(g)
        while len(there) > slots:
            there.popitem(last=False)
    return hits, asked


def best(steps: list[list[int]], held: list[int], slots: int) -> tuple[int, int]:
    """(hits, asked) where the group goes that is not used again for longest (Belady 1966)."""
    never, coming = len(steps), {}
    uses: list[dict[int, int]] = [{} for _ in steps]  # of each step: group -> its next step
    for i in reversed(range(len(steps))):
        for g in steps[i]:
            uses[i][g] = coming.get(g, never)
        coming.update(dict.fromkeys(steps[i], i))
    following = {g: coming.get(g, never) for g in held}
    heap: list[tuple[int, int]] = []
    for g, n in following.items():
        heappush(heap, (-n, g))
    hits = asked = 0
    for i, groups in enumerate(steps):
        hits, asked = (
            hits + (i >= WARM) * sum(g in following for g in groups),
            asked + (i >= WARM) * len(groups),
        )
        for g in groups:
            following[g] = uses[i][g]
            heappush(heap, (-uses[i][g], g))
        while len(following) > slots:
            n, g = heappop(heap)
            if following.get(g) == -n:
                del following[g]
    return hits, asked


def _step(loaded: LoadedModel, position: int, filled: bool = True) -> dict[str, Any]:
    """Rates at a position, the nodes of attention; `filled`: after pseudo-random cells."""
    decoder = Decoder(loaded)
    if filled:
        fill(loaded, position)
    before = _counts(loaded)
    found: dict[str, Any] = {"rate": decoder.rate(position, 64, 3)}
    if before:
        found["counts"] = _rate(before, _counts(loaded))
    wanted = ("kv_", "sparse_attention", "attention_inputs", "score_and_select")
    for row in decoder.table()["kernels"]:
        name = row["kernel"].rsplit(": ", 1)[-1]
        if name.startswith(wanted):
            found.setdefault("nodes", []).append({**row, "kernel": name})
    say(f"step at {position}: {found}")
    return found
