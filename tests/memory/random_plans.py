"""Random models, machines and options, from a few megabytes to a few terabytes."""

from hypothesis import strategies as st

from strata.hw import Gpu, Machine
from strata.memory import ModelSizes, PlanOptions
from strata.memory.plan_sizes import CellBytes

MIB, GIB = 1 << 20, 1 << 30
CAPACITIES = (64 * MIB, GIB, 16 * GIB, 2 << 40)


def sizes(least: int = 0, most: int = CAPACITIES[-1]) -> st.SearchStrategy[int]:
    """Bytes, spread over orders of magnitude."""
    exponents = st.integers(max(least, 1).bit_length(), most.bit_length())
    return st.tuples(exponents, st.floats(0.5, 1)).map(lambda x: min(max(int(2 ** x[0] * x[1]), least), most))


def target() -> ModelSizes:
    """About the model that this engine is made for."""
    return ModelSizes(
        name="target",
        dense=4778544640,
        embedding=675430400,
        draft=986545152,
        expert_bytes=(1715200,) * 40 + (2176000,) * 8,
        num_experts=512,
        experts_per_token=10,
        ngram=28800138240,
        cells={
            "f32": CellBytes(4096, 49152, 1536),
            "f16": CellBytes(2048, 24576, 1536),
            "int8": CellBytes(1056, 12672, 1536),
            "k8v4": CellBytes(800, 9600, 1536),
            "q4": CellBytes(544, 6528, 1536),
        },
        slot=243311616,
        workspace=107639036,
        step_arena=10136064,
        chunk_arena=89128960,
        chunk_rows=512,
        thread=15209536,
        vocab=248320,
        layers=49,
        max_context=262144,
    )


@st.composite
def models(draw: st.DrawFn) -> ModelSizes:
    layers, sparse = draw(st.integers(1, 64)), draw(st.booleans())
    layers_with_experts = draw(st.sampled_from((0, layers, max(layers - 1, 1))))
    kinds = draw(st.lists(st.integers(4096, 8 << 20), min_size=1, max_size=3))
    expert_bytes = tuple(kinds[i * i % len(kinds)] for i in range(layers_with_experts))
    head = draw(st.integers(64, 65536))
    share = draw(st.integers(0, 4))
    factors = (("f32", 8), ("f16", 4), ("int8", 3), ("k8v4", 2), ("q4", 1))
    cells = {
        kv: CellBytes(head * f * share // 4, head * f if sparse else 0, head if sparse else 0)
        for kv, f in factors
    }
    if draw(st.booleans()):
        cells = {kv: cells[kv] for kv in ("f32", "f16")}
    rows = draw(st.sampled_from((0, 64, 512, 8192)))
    return ModelSizes(
        name="random",
        dense=draw(sizes(MIB, 64 * GIB)),
        embedding=draw(sizes(0, 2 * GIB)),
        draft=draw(st.sampled_from((0, 800 * MIB))),
        expert_bytes=expert_bytes,
        num_experts=draw(st.sampled_from((8, 128, 512))) if expert_bytes else 0,
        experts_per_token=draw(st.integers(1, 16)) if expert_bytes else 0,
        ngram=draw(st.sampled_from((0, MIB, 28 * GIB))),
        cells=cells,
        slot=draw(sizes(0, 512 * MIB)),
        workspace=draw(sizes(0, GIB)),
        step_arena=draw(sizes(0, 64 * MIB)),
        chunk_arena=draw(sizes(0, 4 * GIB)) if rows else 0,
        chunk_rows=rows,
        thread=draw(sizes(0, 32 * MIB)),
        vocab=draw(st.integers(256, 300_000)),
        layers=layers,
        max_context=draw(st.sampled_from((64, 2048, 32768, 262144, 1_000_000))),
    )


@st.composite
def machines(draw: st.DrawFn, gpu: bool = False) -> Machine:
    ram = draw(sizes(256 * MIB, 2 << 40))
    gpus = []
    if gpu or draw(st.integers(0, 2)):
        vram = draw(sizes(GIB, 160 * GIB))
        gpus = [Gpu("random", vram, draw(st.integers(vram // 4, vram)), draw(st.floats(1e9, 64e9)))]
    return Machine(
        ram=ram,
        others=draw(st.integers(0, ram)) if draw(st.booleans()) else 0,
        cgroup_limit=draw(st.none() | sizes(256 * MIB, 2 << 40)),
        cgroup_others=draw(st.integers(0, GIB)),
        lockable=draw(st.none() | sizes(0, 2 << 40)),
        huge_page=draw(st.sampled_from((0, 2 * MIB))),
        threads=draw(st.integers(1, 128)),
        gpus=tuple(gpus),
    )


@st.composite
def plan_options(draw: st.DrawFn) -> PlanOptions:
    return PlanOptions(
        max_context=draw(st.sampled_from((0, 0, 100, 4096, 32768, 262144))),
        max_num_seqs=draw(st.sampled_from((1, 1, 4, 32))),
        kv=draw(st.sampled_from(("auto", "auto", "f16", "int8", "q4"))),
        kv_resident=draw(st.sampled_from((0, 0, 20480, 65536))),
        prefill=draw(st.sampled_from((0, 64, 512, 8192))),
        vram_reserve=draw(st.sampled_from((0, 700 * MIB))),
        expert_slots=draw(st.none() | st.none() | st.integers(0, 30000)),
        ram_budget=draw(st.none() | st.none() | sizes(0, 512 * GIB)),
    )
