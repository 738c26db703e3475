"""A placement for people and as JSON."""

from typing import Any

from strata.memory.plan_parts import EXPERTS, Tier
from strata.memory.plan_place import Placement


def lines(placement: Placement) -> list[str]:
    """The placement as text."""
    model, choice = placement.model, placement.choice
    out = [
        f"model     {model.name}",
        f"context   {choice.context:,} tokens, {choice.sequences} at once, cells {choice.kv}"
        + (f", {choice.resident:,} of {choice.cells:,} resident" if choice.resident < choice.cells else ""),
        f"prompts   {choice.prefill:,} tokens at a time"
        + (f", {_size(placement.lent)} lent by the expert cache" if placement.lent else "")
        + (f", {_size(stage)} of it for cells from RAM" if (stage := model.stage(choice)) else ""),
    ]
    for tier in (placement.vram, placement.ram):
        if tier is not None:
            out += ["", *_tier(tier)]
    if placement.vram is not None and model.num_routed_experts:
        share = placement.slots.count / model.num_routed_experts
        sizes = ", ".join(f"{c.count:,} of {c.nbytes:,} B" for c in placement.slots.classes if c.count)
        out += [
            "",
            f"expert cache  {placement.slots.count:,} of {model.num_routed_experts:,} experts ({share:.1%})"
            + (f": {sizes}" if sizes else ""),
        ]
    if placement.experts_on_ssd:
        out.append(f"experts on the SSD  {_size(placement.experts_on_ssd)}")
    if placement.pinned:
        out.append(f"page-locked  {_size(placement.pinned)}")
    return [*out, *(f"note: {note}" for note in placement.notes)]


def _tier(tier: Tier) -> list[str]:
    parts = sorted(tier.parts, key=lambda p: (p.name == EXPERTS, -p.nbytes))
    rows = [(p.name, p.nbytes) for p in parts] + [("reserve", tier.reserve), ("free", tier.free)]
    return [f"{tier.name:<18}{_size(tier.capacity):>12}", *(f"  {n:<16}{_size(b):>12}" for n, b in rows)]


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes} B"


def to_json(placement: Placement) -> dict[str, Any]:
    """Plain values; bytes."""
    choice, stage = placement.choice, placement.model.stage(placement.choice)
    return {
        "model": placement.model.name,
        "context": choice.context,
        "parallel": choice.sequences,
        "kv": choice.kv,
        "kv_resident": choice.resident,
        "kv_prefetch": stage > 0,
        "prefill": choice.prefill,
        "tiers": {t.name.lower(): _tier_json(t) for t in (placement.vram, placement.ram) if t is not None},
        "expert_cache": {
            "slots": placement.slots.count,
            "experts": placement.model.num_routed_experts,
            "nbytes": placement.slots.nbytes,
            "sizes": [[c.nbytes, c.count] for c in placement.slots.classes],
        },
        "experts_in_ram": placement.experts_in_ram,
        "experts_on_ssd": placement.experts_on_ssd,
        "offloaded_layers": placement.offloaded,
        "lent": placement.lent,
        "pinned": placement.pinned,
        "notes": list(placement.notes),
    }


def _tier_json(tier: Tier) -> dict[str, Any]:
    return {
        "capacity": tier.capacity,
        "reserve": tier.reserve,
        "parts": {p.name: p.nbytes for p in tier.parts},
        "free": tier.free,
    }
