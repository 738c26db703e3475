"""Metrics of the tiers: counters by tier from a plain mapping, the plan's sizes, and nothing that is not counted."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from strata.hw import Gpu, Machine
from strata.memory import ModelSizes, PlanOptions, plan
from strata.memory.counters import NAMES
from strata.memory.plan_sizes import CellBytes
from strata.server import tier_metrics
from strata.server.tier_metrics import TierCollector

GIB = 1 << 30


@pytest.fixture
def placement():
    cells = {"f16": CellBytes(1024)}
    model = ModelSizes("m", GIB, 0, 0, (1 << 20,) * 4, 64, 4, 0, cells, 0, 0, 0, 0, 0, 0, 1000, 4, 4096)
    return plan(model, Machine(8 * GIB, 0, gpus=(Gpu("card", 3 * GIB, 3 * GIB),)), PlanOptions())


def samples(counts, placement):
    registry = CollectorRegistry()
    registry.register(TierCollector(lambda: counts, placement))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, *sorted(s.labels.values())): s.value for f in families for s in f.samples}


def test_counters_by_tier(placement):
    found = samples({name: i for i, name in enumerate(NAMES)}, placement)
    at = {name: i for i, name in enumerate(NAMES)}
    assert found["strata_expert_hits_total", "vram"] == at["hits"]
    assert found["strata_expert_hits_total", "ssd"] == at["ram_misses"]
    assert found["strata_expert_bytes_total", "ram"] == at["copy_bytes"]
    assert found["strata_void_steps_total",] == at["void_steps"]
    assert ("strata_kv_groups_total", "hit") not in found


def test_the_plan_is_told(placement):
    found = samples({}, placement)
    assert found["strata_planned_bytes", "dense weights", "vram"] == GIB
    assert found["strata_expert_slots",] == placement.slots.count == 256
    assert not any(key[0].endswith("_total") for key in found)


def test_every_counter_named_exists():
    named = {c for *_, values in tier_metrics._BY_TIER for c in values.values()} | {
        c for *_, c in tier_metrics._PLAIN
    }
    assert named - {"kv_hits", "kv_fetches", "kv_streamed"} <= set(NAMES)
