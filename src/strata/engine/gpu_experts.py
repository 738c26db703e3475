"""Experts of a model on a GPU that does not hold all of them: the store in RAM, slots and ring by the plan."""

from collections.abc import Sequence
from dataclasses import replace

from strata import hw, log
from strata.backends import Backend
from strata.config import EngineOptions
from strata.engine.rates import machine_costs
from strata.engine.shares import cpu_share
from strata.gguf import ModelFile
from strata.memory import Placement
from strata.memory.expert_store import ExpertStore, Progress, StoreOptions, trunk_expert_layers
from strata.memory.plan_parts import EXPERTS, prompt_places, staging_places
from strata.models import Model

_LEFT_FREE = 2  # cores: the engine's thread and the driver's
# Experts that the link brings on a guess while a layer and a mixer compute: on an H200 at 24 GiB 2 made tokens 15 %
# faster than none, 1 and 4 nearly as much.
AHEAD = 2
# Handing a list to workers that poll and taking it back. On an H200's host, by what forced shares cost, 220 to 280 us;
# with 150, 80, 40 and 20 tokens came the more slowly the less it was (176 to 169 a second at 24 GiB).
_POST_NS = 250_000.0


def hold_experts(
    backend: Backend | None,
    model: Model,
    files: Sequence[ModelFile],
    options: EngineOptions,
    placement: Placement,
    progress: Progress | None,
) -> ExpertStore | None:
    """Loads the store and gives it to the backend; None where all experts lie in the GPU's memory, or there is none."""
    if backend is None or backend.name != "cuda":
        return None
    sizes, slots = placement.model, placement.slots
    if placement.vram is None or slots.count >= sizes.num_routed_experts:
        return None
    from strata.backends.cuda import CudaBackend, TierOptions  # the bindings are optional

    assert isinstance(backend, CudaBackend)
    budget = placement.experts_in_ram if placement.experts_on_ssd else 0
    store = ExpertStore(trunk_expert_layers(model), files, StoreOptions(budget=budget))
    store.load(progress)
    tier = TierOptions(
        slots=tuple(slots.sizes()),
        places=staging_places(sizes),
        k=sizes.experts_per_token,
        cpu_share=cpu_share(options),
        workers=_workers(options),
        link_rate=options.link_limit_gbps * 1e9,
        ahead=AHEAD if options.lookahead == "on" else 0,
        prompt_places=prompt_places(sizes, placement.choice.prefill),
        chunk_share=cpu_share(options),
    )
    backend.hold_experts(store.tiers, tier)
    log.logger(__name__).info(
        "%d of %d experts in VRAM (%.2f GiB, and %d places of a ring), all in RAM (%.2f GiB), %s",
        slots.count,
        sizes.num_routed_experts,
        slots.nbytes / 2**30,
        tier.places,
        store.nbytes / 2**30,
        f"{tier.workers} CPU workers" if tier.cpu_share else "misses are copied",
    )
    return store


def expect_weights(backend: Backend, placement: Placement) -> None:
    """Tells a GPU's backend how many bytes of weights it will be given, borders between them included."""
    expect = getattr(backend, "expect_weights", None)
    if expect is None or placement.vram is None:
        return
    names = ["dense weights", "draft layer", "embedding"]
    if placement.slots.count >= placement.model.num_routed_experts:
        names.append(EXPERTS)
    if nbytes := sum(placement.vram.part(name) for name in names):
        expect(nbytes + nbytes // 100)


def set_gpu_costs(backend: Backend, model: Model, options: EngineOptions) -> None:
    """Gives a GPU that shares misses by costs this machine's rates."""
    tier = getattr(backend, "tier", None)
    if tier is None or cpu_share(options) >= 0:
        return
    costs = machine_costs(trunk_expert_layers(model)[0], _workers(options), options.isa, tier.link_rate)
    tier.set_costs(replace(costs, cpu_post=_POST_NS).values())


def _workers(options: EngineOptions) -> int:
    return max(1, (options.threads or hw.cpu_count()) - _LEFT_FREE)
