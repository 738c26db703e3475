"""How many drafts are verified, against machines that only count: no model, no clock."""

import random

import pytest

from strata.engine.drafts.acceptance import Acceptance, ByAgreement
from strata.engine.drafts.costs import StepCosts
from strata.engine.drafts.decision import Decision, allot
from strata.engine.drafts.lookup import LONGEST, Lookup
from strata.engine.drafts.purse import Purse
from strata.engine.drafts.topics import TopicMisses


class Machine:
    """A plain step takes 1; a row more, a pass of the draft layer and waiting for tokens cost so much of it."""

    def __init__(self, row, draft, wait=0.02, noise=0.0, seed=0):
        self.row, self.draft, self.wait, self.noise = row, draft, wait, noise
        self.chance = random.Random(seed)

    def step(self, sequences, rows):
        took = 1.0 + self.row * (rows - 1) + (self.wait if rows > sequences else 0.0)
        return took * (1 + self.noise * self.chance.random())

    def chain(self, passes):
        return self.draft * passes


class Play:
    """Generates tokens for some sequences, whose drafts are right with a chance that may change with the place."""

    def __init__(self, machine, right, sequences=1, decision=None, most=7):
        self.machine, self.right, self.n, self.most = machine, right, sequences, most
        self.decision, self.known = decision or Decision(), [Acceptance() for _ in range(sequences)]
        self.chains, self.passes, self.times, self.tokens = [0] * sequences, 0, [0.0], [0]
        self.drafted = 0

    def step(self):
        reaches = [k.reach(c) for k, c in zip(self.known, self.chains, strict=True)]
        counts = self.decision.keep(reaches, self.passes) if any(self.chains) else [0] * self.n
        chains = self.decision.choose([k.reach(self.most) for k in self.known])
        passes = max(chains)
        took = self.machine.step(self.n, self.n + sum(counts))
        made = self.n
        for known, count in zip(self.known, counts, strict=True):
            right = self.right(self.tokens[-1] / self.n)
            accepted = next((i for i in range(count) if self.machine.chance.random() > right), count)
            if count:
                known.observe(count, accepted)
            made += accepted
        if any(counts) or passes:
            spent = self.machine.chain(passes)
            self.decision.saw_drafted(self.n, self.n + sum(counts), took, passes, spent, made)
            took, self.drafted = took + spent, self.drafted + 1
        else:
            self.decision.saw_plain(self.n, took)
        self.chains, self.passes = chains, passes
        self.times.append(self.times[-1] + took)
        self.tokens.append(self.tokens[-1] + made)

    def run(self, tokens):
        while self.tokens[-1] < tokens * self.n:
            self.step()
        return self

    @property
    def gain(self):
        """Tokens a second in units of plain steps'."""
        return self.tokens[-1] / self.n / self.times[-1] * self.machine.step(self.n, self.n)

    def worst(self, window):
        """The largest loss over so many tokens of a sequence, as a share; steps without drafts take 1."""
        worst, first = 0.0, 0
        for last in range(len(self.tokens)):
            while (self.tokens[last] - self.tokens[first]) / self.n >= window:
                span = (self.tokens[last] - self.tokens[first]) / self.n
                worst = max(worst, (self.times[last] - self.times[first]) / span - 1)
                first += 1
        return worst


MACHINES = {"free rows": (0.01, 0.02), "resident": (0.15, 0.05), "misses": (0.6, 0.08), "twice": (1.0, 0.1)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("right", [0.0, 0.2, 0.4, 0.6, "turns of 60", "turns of 150", "turns of 300"])
@pytest.mark.parametrize("machine", MACHINES)
def test_never_much_slower_than_without(machine, right, seed):
    def chance(at):
        return right if isinstance(right, float) else 0.9 if at // int(right.split()[-1]) % 2 else 0.0

    play = Play(Machine(*MACHINES[machine], seed=seed), chance).run(4000)
    assert play.worst(1024) <= 0.02
    assert play.worst(256) <= 0.04


def test_without_a_purse_losses_are_seen():
    """The same text where nothing holds the losses."""
    purse = Purse(amount=1e9)
    purse.settle = lambda cost, tokens: None
    play = Play(
        Machine(*MACHINES["twice"], seed=1),
        lambda at: 0.9 if at // 150 % 2 else 0.0,
        decision=Decision(purse=purse),
    )
    play.run(4000)
    assert play.worst(256) > 0.04


@pytest.mark.parametrize("machine", ["free rows", "resident"])
def test_gain_grows_with_the_share_of_right_drafts(machine):
    gains = [
        Play(Machine(*MACHINES[machine]), lambda at, p=p: p).run(3000).gain for p in (0, 0.5, 0.75, 0.9, 1)
    ]
    assert gains == sorted(gains)
    assert gains[0] >= 0.98
    assert gains[-1] > 1.9
    assert gains[2] > 1.4


def test_drafts_fade_out_and_return():
    play = Play(Machine(*MACHINES["resident"]), lambda at: 0.9 if at > 1500 else 0.0)
    play.run(1500)
    losing = play.drafted
    assert losing < 80
    play.run(3000)
    assert play.drafted - losing > 200


class Warming(Machine):
    """As beside a tier: the first rows of a topic miss, and ever fewer of those that follow do."""

    cold = 40

    def step(self, sequences, rows):
        self.cold = max(self.cold - rows, 0)
        return super().step(sequences, rows) + self.cold / 40 * 1.5 * rows


class Changing(Machine):
    """Each 150 tokens have a topic of their own, of whose first 24 tokens each misses twelve times as much."""

    usual, each = 5.0, 0.02

    def missed(self, tokens, rows):
        return self.usual * rows * (12 if tokens % 150 < 24 else 1)

    def play(self, topics, right=0.97, tokens=3000):
        """Tokens a second in units of what no drafts have."""
        decision, known, at, time, plain = Decision(most_rows=8), Acceptance(), 0, 0.0, 0.0
        chain = passes = 0
        while at < tokens:
            count = decision.keep([known.reach(chain)], passes)[0] if chain else 0
            chain_next = decision.choose([known.reach(7)])[0]
            missed = self.missed(at, 1 + count)
            took = self.step(1, 1 + count) + self.each * missed
            accepted = next((i for i in range(count) if self.chance.random() > right), count)
            if count:
                known.observe(count, accepted)
            if count or chain_next:
                transient, paid = topics.drafted(missed, 1 + count, 1 + accepted, self.each)
                spent = self.chain(chain_next)
                ms, extra = took - transient, transient - paid
                decision.saw_drafted(1, 1 + count, ms, chain_next, spent, 1 + accepted, extra)
            else:
                decision.saw_plain(1, topics.plain(took, missed, 1, self.each))
            chain, passes, time = chain_next, chain_next, time + took + self.chain(chain_next)
            plain += sum(self.step(1, 1) + self.each * self.missed(at + i, 1) for i in range(1 + accepted))
            at += 1 + accepted
        return plain / time


class Blind(TopicMisses):
    """Takes every step as it is."""

    def plain(self, ms, missed, tokens, each):
        return ms

    def drafted(self, missed, rows, tokens, each):
        return 0.0, 0.0


def test_new_topics_are_not_held_against_drafts():
    gains = [Changing(0.12, 0.04).play(topics) for topics in (TopicMisses(), Blind())]
    assert gains[0] > 1.4
    assert gains[1] < 1.3


def test_wrong_drafts_are_held_against_themselves():
    """What they miss is no topic's."""
    topics = TopicMisses()
    for missed in (50, 60, 40, 50, 55, 45) * 10:
        assert topics.plain(5 + 0.01 * missed, missed, 1, 0.02) == 5 + 0.01 * missed
    assert topics.usual == pytest.approx(45, abs=6)
    assert topics.drafted(500, 8, 1, 0.02) == (0.0, 0.0)
    usual = topics.usual
    beyond = 1600 - 12 * usual
    assert topics.drafted(1600, 8, 8, 0.02) == pytest.approx((0.02 * beyond, 0.01 * beyond), rel=0.01)
    assert topics.plain(11.0, 600, 1, 0.02) == pytest.approx(11 - 0.01 * (600 - 1.5 * topics.usual), abs=0.1)
    assert TopicMisses().drafted(700, 4, 4, 0.02) == (0.0, 0.0), "nothing is known"


def test_rows_that_miss_little_have_their_own_rule():
    """Plain steps of a text's begin missed much; rows of one topic share what they miss."""
    topics = TopicMisses()
    for _ in range(20):
        topics.plain(6.0, 100, 1, 0.03)
    for _ in range(20):
        assert topics.drafted(200, 8, 8, 0.03)[0] == 0.0
    assert topics.drafted(1300, 8, 8, 0.03)[0] == pytest.approx(0.03 * (1300 - 1.5 * 200), rel=0.05)
    assert topics.drafted(640, 4, 4, 0.03)[0] == pytest.approx(0.03 * (640 - 1.5 * 400)), (
        "fewer rows miss more each"
    )
    assert topics.usual == pytest.approx(100, rel=0.01), "of plain steps it says nothing"


def test_a_purse_that_one_step_emptied_opens_soon():
    """For one draft, whose gains then fill it."""
    purse = Purse()
    purse.settle(12.0, 4.0)
    assert not purse.open
    waited = 0
    while not purse.open:
        purse.settle(1.0, 1.0)
        waited += 1
    assert waited < 320 and purse.amount < 1.2


class Steep(Machine):
    """Five rows and more cost as much as ten plain steps."""

    def step(self, sequences, rows):
        return 10.0 if rows >= 5 else super().step(sequences, rows)


def test_what_rows_cost_while_much_was_missed_does_not_stay(monkeypatch):
    def gain():
        return Play(Warming(*MACHINES["resident"]), lambda at: 0.95).run(2000).gain

    assert gain() > 2.2
    monkeypatch.setattr("strata.engine.drafts.costs.FADES", 1 << 30)
    assert gain() < 1.7


def test_what_is_far_too_dear_is_not_tried_again(monkeypatch):
    def gain():
        return Play(Steep(*MACHINES["resident"]), lambda at: 0.97).run(4000).gain

    best = Play(Steep(*MACHINES["resident"]), lambda at: 0.97, most=3).run(4000).gain
    assert gain() > 0.97 * best
    monkeypatch.setattr("strata.engine.drafts.costs.TOO_DEAR", 100.0)
    assert gain() < 0.92 * best


def test_more_rows_where_rows_are_cheap():
    def rows(row):
        costs = StepCosts()
        for _ in range(4):
            costs.saw_plain(1, 1.0)
        for r in range(2, 9):
            costs.saw_drafted(1, r, 1 + row * (r - 1), 7, 0.2)
        return allot([Acceptance([0.8] * 7, [20] * 7).reach(7)], costs, 7).counts[0]

    counts = [rows(row) for row in (0.01, 0.1, 0.3, 0.6)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 6 and counts[-1] <= 2


@pytest.mark.parametrize("sequences", [2, 4, 8])
@pytest.mark.parametrize("right", [0.0, 0.75, "mixed"])
def test_batches_gain_or_stay(sequences, right):
    play = Play(Machine(0.1, 0.05), lambda at: 0.0 if right == "mixed" else right, sequences)
    if right == "mixed":
        turn = iter(range(10**9))
        play.right = lambda at: 0.95 if next(turn) % sequences % 2 else 0.0
    play.run(2000)
    assert play.gain >= (1.05 if right == 0.75 else 0.98)


def test_no_more_rows_than_a_device_takes_well():
    decision = Decision(most_rows=8)
    play = Play(Machine(*MACHINES["free rows"]), lambda at: 0.95, sequences=4, decision=decision).run(400)
    assert play.gain > 1.4
    assert max(decision.costs._drafted.ms) == 8
    free = Play(Machine(*MACHINES["free rows"]), lambda at: 0.95, sequences=4).run(400)
    assert max(free.decision.costs._drafted.ms) > 8


def test_rows_of_a_batch_go_to_those_whose_drafts_are_right():
    costs = StepCosts()
    for _ in range(4):
        costs.saw_plain(3, 1.0)
    good, bad = Acceptance([0.9] * 7, [50] * 7), Acceptance([0.05] * 7, [50] * 7)
    counts = allot([good.reach(7), bad.reach(7), good.reach(7)], costs).counts
    assert counts[1] == 0 and counts[0] > 1 and abs(counts[0] - counts[2]) <= 1
    assert sum(allot([good.reach(7)] * 30, costs).counts) <= 2


def test_acceptance_by_place():
    known = Acceptance()
    for _ in range(400):
        known.observe(4, 2)
    reach = known.reach(7)
    assert reach[1] > 0.95 and reach[2] < 0.05
    assert reach == sorted(reach, reverse=True)
    kinds = ByAgreement()
    assert len({id(kinds.of(n)) for n in (3, 8, 20)}) == 3


def test_lookup_takes_the_longest_agreement_and_of_equals_the_latest():
    found = Lookup([1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 8, 1, 2, 3, 4]).find(2)
    assert (found.token_ids, found.agreed) == ([50, 9], 4)
    found = Lookup([2, 3, 4, 50, 9, 2, 3, 4, 60, 8, 2, 3, 4]).find(3)
    assert (found.token_ids, found.agreed) == ([60, 8, 2], 3)
    assert Lookup([1, 2, 3, 4, 5, 6]).find(3) is None
    assert Lookup([1, 2]).find(3) is None


def test_lookup_goes_round_in_a_loop_and_grows_with_the_text():
    text = [5, 6, 7, 8] * 20
    grown = Lookup([])
    for token in text:
        grown.extend([token])
    for lookup in (Lookup(text), grown):
        found = lookup.find(7)
        assert found.token_ids == [5, 6, 7, 8, 5, 6, 7] and found.agreed == LONGEST


def test_rows_never_seen_lie_between_what_has_faded():
    """Long ago steps of two and of eight rows were dear; those between are thought no dearer than those are now."""
    costs = StepCosts()
    for rows, ms in ((2, 18.0), (8, 30.0)):
        costs.saw_plain(1, 10.0)
        costs.saw_drafted(1, rows, ms, 0, 0.0)
    between = costs.drafted(1, 5)
    assert between == 24.0
    for _ in range(400):
        costs.saw_plain(1, 10.0)
    assert costs.drafted(1, 5) == (costs.drafted(1, 2) + costs.drafted(1, 8)) / 2 < 18.0


def test_steps_of_another_number_of_sequences_do_not_settle():
    """That four sequences' steps take longer than one's does not mean that they get no faster."""
    costs = StepCosts()
    for _ in range(8):
        costs.saw_plain(1, 10.0)
    for _ in range(4):
        costs.saw_plain(4, 20.0)
    assert not costs.settled(4)
    for _ in range(4):
        costs.saw_plain(4, 20.0)
    assert costs.settled(4)
