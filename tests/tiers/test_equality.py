"""Where experts lie and who computes them changes no bit, and every routed expert is computed once."""

import pytest
from rig import NgramOptions, Swapper, rig

from strata.hw import in_memory


def check(r, wanted):
    assert r.digest() == wanted
    counts = r.counts()
    assert counts["routed_pairs"] == counts["computed_pairs"] > 0
    assert counts["void_steps"] == 0
    return counts


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("resident", [0.0, 0.2, 0.5, 1.0])
def test_residency_and_cpu_share(model_path, wanted, resident, share):
    r = rig(model_path, budget=0, sim={"cpu_share": share, "workers": 2}, resident=resident)
    counts = check(r, wanted)
    assert counts["distinct"] == counts["hits"] + counts["copies"] + counts["cpu_experts"]
    assert (counts["hits"] > 0) == (resident > 0)
    if resident < 1:
        assert (counts["copies"] > 0) == (share < 1) or counts["copies"] > 0
        assert (counts["cpu_experts"] > 0) == (share > 0)
    else:
        assert counts["copies"] == counts["cpu_experts"] == 0


@pytest.mark.parametrize("part", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_ram_budgets_while_experts_are_swapped(model_path, wanted, part, share):
    whole = rig(model_path, budget=0).store.native.nbytes
    sim = {"cpu_share": share, "exclusive": part < 0.5, "workers": 1}
    r = rig(model_path, budget=int(whole * part), sim=sim, resident=0.2)
    with Swapper(r.backend.device, len(r.store.layers)) as swapper:
        counts = check(r, wanted)
        for _ in range(30):  # on a busy machine the swapper may get few turns
            if swapper.done >= 20 and counts["retirements"] >= 5:
                break
            counts = check(r, wanted)
    assert swapper.done >= 20
    assert counts["retirements"] >= 5
    assert (counts["ram_misses"] > 0) == (part < 1)


@pytest.mark.parametrize("part", [0.5, 0.2, 0.02])
@pytest.mark.parametrize("lookahead", [True, False])
def test_plain_cpu(model_path, wanted, part, lookahead):
    whole = rig(model_path, budget=0).store.native.nbytes
    r = rig(model_path, budget=int(whole * part) + 200_000, lookahead=lookahead, ngram=NgramOptions())
    counts = check(r, wanted)
    assert counts["ram_misses"] > 0
    assert counts["evictions"] > 0
    assert (counts["lookahead_guesses"] > 0) == lookahead
    if lookahead:
        assert counts["lookahead_right"] > 0.5 * counts["lookahead_guesses"]


@pytest.mark.parametrize("options", [{"read_threads": 3}, {"lock": True}])
def test_other_ways_of_reading(model_path, wanted, options):
    r = rig(model_path, budget=600_000, **options)
    check(r, wanted)
    threads = "read_threads" in options or in_memory(model_path)
    assert r.store.native.method == ("threads" if threads else "io_uring")


def test_a_slow_link_and_a_small_ring(model_path, wanted):
    sim = {"cpu_share": 0.3, "staging": 1, "link_rate": 2e9}
    check(rig(model_path, budget=0, sim=sim, resident=0.2), wanted)


def test_a_list_of_more_experts_than_ram_holds(model_path):
    """Workers give up each before they need the place of another."""
    r = rig(model_path, budget=400_000, sim={"cpu_share": 1.0, "workers": 2}, wait=5, lookahead=False)
    r.digest(rows=(1,))
    assert r.counts()["void_steps"] == 0


def test_a_wrong_byte_is_seen(model_path, wanted):
    """The hash can fail: one expert's table entry names another's bytes."""
    r = rig(model_path, budget=0)
    table = r.store.tiers.tables[r.store.layers[2].down]
    table[:] = table[::-1].copy()
    assert r.digest() != wanted
