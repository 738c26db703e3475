"""The chunk that reads soonest: large where its buffers cost nothing, less where they take slots of experts."""

from dataclasses import replace
from statistics import geometric_mean

import pytest

from memory.random_plans import GIB, target
from strata.config import EngineOptions
from strata.errors import MemoryLimitError, UsageError
from strata.hw import Gpu, Machine
from strata.memory import PlanOptions, plan
from strata.memory.plan_prompts import PROMPTS, ROWS, reading_seconds
from strata.memory.plan_sizes import prompt_rows

TOKEN = 600_000  # bytes of a chunk's buffers a row


def desk(vram):
    return Machine(64 * GIB, 2 * GIB, threads=16, gpus=(Gpu("card", vram * GIB, vram * GIB),))


def placed(vram, prefill=16384, auto=True, **more):
    model = replace(target(), chunk_arena=TOKEN * 16384, chunk_rows=16384)
    options = PlanOptions(prefill=prefill, prefill_auto=auto, max_context=131072, kv="int8", **more)
    return plan(model, desk(vram), options)


def seconds(placement, link):
    return geometric_mean(reading_seconds(placement, n, link) for n in PROMPTS)


def test_the_more_experts_fit_the_larger_the_chunk():
    sizes = [placed(vram).choice.prefill for vram in (12, 24, 80)]
    assert sizes == [2048, 8192, 8192]
    assert placed(80).lent == 0  # they are all there


@pytest.mark.parametrize("vram", [12, 16, 24, 32, 80])
@pytest.mark.parametrize("link", [0.0, 12e9])
def test_no_size_that_fits_is_much_faster(vram, link):
    chosen, others = placed(vram, link_rate=link), []
    assert chosen.vram.free >= 0
    for rows in ROWS:
        try:
            others.append(placed(vram, rows, auto=False, link_rate=link))
        except MemoryLimitError:
            continue  # what does not fit is no choice
    assert others
    best = min(seconds(p, link or 50e9) for p in others)
    assert seconds(chosen, link or 50e9) <= 1.031 * best


def test_most_and_none():
    assert placed(24, 2048).choice.prefill == 2048
    assert placed(24, 700).choice.prefill <= 700
    no_gpu = plan(target(), replace(desk(24), gpus=()), PlanOptions(prefill=16384, prefill_auto=True))
    assert no_gpu.choice.prefill == 512


@pytest.mark.parametrize(
    ("text", "rows"), [("auto", 16384), ("auto:2048", 2048), ("auto:64", 64), ("700", 700), ("0", 0)]
)
def test_what_the_option_says(text, rows):
    options = EngineOptions(prefill=text)
    assert prompt_rows(options) == rows
    assert PlanOptions.of(options).prefill_auto == text.startswith("auto")


@pytest.mark.parametrize("text", ["auto:", "auto:0", "auto:63", "some", "-1", "auto:x"])
def test_anything_else_is_an_error(text):
    with pytest.raises(UsageError, match="--prefill"):
        EngineOptions(prefill=text)
