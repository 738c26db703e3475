"""What the live monitor shows, as plain data."""

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from strata import hw
from strata.config import ServingOptions, Settings
from strata.engine import Engine, Request, Status
from strata.server.metrics import Metrics
from strata.server.service import Service

_PAGE_CELLS = 64


async def status_of(service: Service, settings: Sequence[Settings]) -> dict[str, Any]:
    """Figures of one moment; `now` in seconds, for rates are differences of two looks. Unknown values are None."""
    await service.look()
    engine, requests, cards = service.engine, service.engine.open_requests, hw.gpus()
    count = _counts(service.metrics)
    hits, queries = count["prefix_cache_hits_total"], count["prefix_cache_queries_total"]
    first = "time_to_first_token_seconds"
    unknown: list[dict[str, Any]] = []
    tiers = await engine.ask_soon(lambda e: _tiers(e, settings), unknown)
    # ended requests and open ones; one that has just ended is for a moment in neither
    generated = count["generation_tokens_total"] + sum(len(r.output_token_ids) for r in requests)
    read = count["prompt_tokens_total"] - hits + sum(max(_read(r) - r.num_cached_tokens, 0) for r in requests)
    return {
        "now": perf_counter(),
        "model": service.model_id,
        "loaded": engine.loaded,
        "running": engine.num_running,
        "waiting": engine.num_waiting,
        "generated_tokens": generated,
        "read_tokens": read,
        "first_token_seconds": _share(count[f"{first}_sum"], count[f"{first}_count"]),
        "decode_share": _share(engine.decode_seconds, engine.decode_seconds + engine.prompt_seconds),
        "hit_rates": [
            {"name": "Prompt tokens reused", "share": _share(hits, queries)},
            *_tier_hits(service.metrics),
        ],
        "tiers": [*(_vram(card) for card in cards), *tiers],
        "plan": [
            {"tier": tier, "name": part, "bytes": b} for (tier, part), b in _planned(service.metrics).items()
        ],
        "requests": [_request(r) for r in requests],
        "gpus": cards,
    }


def _tiers(engine: Engine, settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """Bytes used of bytes there are, nearest tier first; total 0: no limit."""
    limits = next((s for s in settings if isinstance(s, ServingOptions)), ServingOptions())
    memory = hw.memory()
    total = memory.total if memory.limit is None else min(memory.limit, memory.total)
    page = engine.kv_bytes_per_cell * _PAGE_CELLS
    used = engine.num_pages - engine.num_free_pages
    return [
        _tier("ram", "machine", total - memory.available, total),
        _tier("ram", "KV pool", used * page, engine.num_pages * page),
        _tier("ram", "conversations", engine.session_ram_bytes, limits.conversation_cache_mib << 20),
        _tier("ssd", "model file", engine.model_file.nbytes, 0),
        *(
            [_tier("ssd", "conversations", engine.session_disk_bytes, limits.session_mib << 20)]
            if limits.session_dir
            else []
        ),
    ]


def _tier(tier: str, name: str, used: int, total: int) -> dict[str, Any]:
    return {"tier": tier, "name": name, "used": used, "total": total}


def _vram(card: dict[str, Any]) -> dict[str, Any]:
    return _tier("vram", card["name"], card["memory_used"], card["memory_total"])


def _request(request: Request) -> dict[str, Any]:
    reading = request.status is Status.RUNNING and not request.output_token_ids
    return {
        "id": request.request_id,
        "state": "reading its prompt" if reading else request.status.value,
        "prompt": len(request.prompt_token_ids),
        "read": _read(request),
        "cached": request.num_cached_tokens,
        "generated": len(request.output_token_ids),
        "seconds": perf_counter() - request.timings.arrived,
    }


def _read(request: Request) -> int:
    return min(request.num_computed_tokens, len(request.prompt_token_ids))


def _counts(metrics: Metrics) -> dict[str, float]:
    """Sums over all labels of vLLM's names, without their prefix."""
    found: dict[str, float] = defaultdict(float)
    for family in metrics.registry.collect():
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name.removeprefix("vllm:")] += sample.value
    return found


def _tier_hits(metrics: Metrics) -> list[dict[str, Any]]:
    """Where the experts of steps were found; nothing for a model whose experts no tier counts."""
    found = {
        sample.labels["tier"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "strata_expert_hits_total"
    }
    total = sum(found.values())
    return [{"name": f"Experts found in {tier}", "share": _share(n, total)} for tier, n in found.items()]


def _planned(metrics: Metrics) -> dict[tuple[str, str], float]:
    """The memory plan: bytes by tier and part."""
    return {
        (sample.labels["tier"], sample.labels["part"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "strata_planned_bytes"
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
