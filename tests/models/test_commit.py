"""What unverified rows leave: nothing. And checkpoints, taps and forks continue to the bit."""

import pytest
from golden import ALL

from models.driver import Driver, Rows, digest
from strata.backends.cpu import CpuBackend
from strata.errors import ModelFileError
from strata.memory import Checkpoint, RingShape

NAMES = ["qwen35", "qwen3next", "qwen4exp"]
TOKENS = {name: [int(t) for t in ALL[name].tokens] * 2 for name in NAMES}
LENGTH = 140  # past two page and block borders


def driver(name, **options):
    return Driver(ALL[name].model_path, CpuBackend(2), **options)


@pytest.fixture(scope="module")
def singles():
    """Logits of single steps, by model."""
    return {name: driver(name).read(0, TOKENS[name][:LENGTH]) for name in NAMES}


def wrong(tokens):
    """Drafts that are not what follows."""
    return [(t + 7) % 120 for t in tokens]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 32])
@pytest.mark.parametrize("name", NAMES)
def test_verify_and_commit_equals_single_steps(name, rows, singles):
    """Every accepted count in turn; the rejected rows' tokens are others than those that follow."""
    d, tokens, at, turn = driver(name), TOKENS[name], 0, 0
    while at + rows <= LENGTH:
        accepted = 1 + turn % rows
        turn += 1
        fed = tokens[at : at + accepted] + wrong(tokens[at + accepted : at + rows])
        got = d.step(Rows(0, at, fed))[:accepted]
        assert digest(got) == digest(singles[name][at : at + accepted]), f"row {at}, {accepted} accepted"
        d.commit({0: accepted})
        at += accepted


def after_a_rejected_step(name):
    """Whether 32 rows that stay and 32 that go leave the single steps' logits to the 32 that follow."""
    d, tokens = driver(name), TOKENS[name]
    for at in (0, 32):
        d.step(Rows(0, at, tokens[at : at + 32]))
        d.commit({0: 32})
    d.step(Rows(0, 64, wrong(tokens[64:96])))
    d.commit({0: 0})
    return digest(d.step(Rows(0, 64, tokens[64:96])))


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_step_leaves_no_trace_when_none_of_it_stays(name, singles, monkeypatch):
    """Also with the fault that convolutions' rings lack the one row that this takes."""
    want = digest(singles[name][64:96])
    assert after_a_rejected_step(name) == want
    monkeypatch.setattr(RingShape, "rows", property(lambda ring: 31 + ring.back))
    monkeypatch.setattr("strata.ops.conv.MAX_STEP_ROWS", 31)
    assert after_a_rejected_step(name) != want


def test_a_wrong_commit_shows(singles):
    d, tokens = driver("qwen35"), TOKENS["qwen35"]
    d.step(Rows(0, 0, tokens[:4]))
    d.commit({0: 3})
    assert digest(d.step(Rows(0, 4, tokens[4:5]))) != digest(singles["qwen35"][4:5])


@pytest.mark.parametrize("name", NAMES)
def test_sequences_of_one_step_do_not_meet(name, singles):
    """Three sequences at different positions, different row and accepted counts, one idle now and then."""
    d, tokens = driver(name), TOKENS[name]
    at, turn = {0: 0, 1: 0, 2: 0}, 0
    while max(at.values()) < 72:
        turn += 1
        active = [s for s in at if (turn + s) % 4]
        rows = {s: 1 + (turn * (s + 1)) % 5 for s in active}
        groups = [
            Rows(s, at[s], tokens[at[s] : at[s] + 1] + wrong(tokens[at[s] + 1 : at[s] + rows[s]]))
            for s in active
        ]
        accepted = dict.fromkeys(active, 1)
        if turn % 2:
            groups = [Rows(s, at[s], tokens[at[s] : at[s] + rows[s]]) for s in active]
            accepted = rows
        out, first = d.step(*groups), 0
        for s in active:
            got = out[first : first + accepted[s]]
            assert digest(got) == digest(singles[name][at[s] : at[s] + accepted[s]])
            first += rows[s]
            at[s] += accepted[s]
        d.commit(accepted)


@pytest.mark.parametrize("chunk", [64, 128, 256])
@pytest.mark.parametrize("name", NAMES)
def test_chunk_sizes_give_one_hash(name, chunk):
    tokens = TOKENS[name][:LENGTH]
    assert digest(driver(name).read(0, tokens, chunk)) == digest(driver(name).read(0, tokens, 64))


def continued(d, sequence, tokens, begin, end):
    out = []
    for p in range(begin, end):
        out.append(d.step(Rows(sequence, p, tokens[p : p + 1])))
        d.commit({sequence: 1})
    return [digest(x) for x in out]


@pytest.mark.parametrize("position", [1, 63, 66, 130])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_run_restore_run(name, position):
    d, tokens = driver(name), TOKENS[name]
    d.read(0, tokens[:position], 64)
    saved = d.checkpoint(0, position)
    first = continued(d, 0, tokens, position, position + 12)
    d.step(Rows(0, position + 12, tokens[:3]))
    d.restore(0, saved)
    assert continued(d, 0, tokens, position, position + 12) == first


@pytest.mark.parametrize("name", NAMES)
def test_bytes_restore_in_another_process_s_pool(name):
    d, tokens = driver(name), TOKENS[name]
    d.read(0, tokens[:70], 64)
    data = d.checkpoint(0, 70, pages=True).to_bytes()
    other = driver(name)
    other.restore(2, Checkpoint.from_bytes(data))
    assert continued(other, 2, tokens, 70, 76) == continued(d, 0, tokens, 70, 76)


@pytest.mark.parametrize("name", NAMES)
def test_taps_write_the_state_at_multiples_of_64(name):
    d, tokens = driver(name), TOKENS[name]
    d.chunk(Rows(0, 0, tokens[:128]), taps=[(64, 4), (128, 5)])
    plain = driver(name)
    plain.read(1, tokens[:64], 64)
    want = continued(plain, 1, tokens, 64, 70)
    d.fork(0, 1, 64)
    for buffer in d.state.recurrent():
        d.at(buffer)[1] = d.at(buffer)[4]
    d.commit({1: 0})
    assert continued(d, 1, tokens, 64, 70) == want
    plain.chunk(Rows(2, 0, tokens[:128]))
    for buffer in d.state.recurrent():
        d.at(buffer)[0] = d.at(buffer)[5]
    assert continued(d, 0, tokens, 128, 131) == continued(plain, 2, tokens, 128, 131)


@pytest.mark.parametrize("name", NAMES)
def test_forks_go_their_own_ways(name, singles):
    """A fork in the middle of a page with rows still pending; then parent and child take different tokens."""
    d, tokens = driver(name), TOKENS[name]
    for at in range(0, 68, 4):
        d.step(Rows(0, at, tokens[at : at + 4]))
        d.commit({0: 4})
    d.fork(0, 1, 68)
    continued(d, 1, wrong(tokens), 68, 72)
    assert continued(d, 0, tokens, 68, 72) == [digest(row[None]) for row in singles[name][68:72]]
    assert d.pages.num_free == d.pages.num_pages - 3
    d.pages.free(0)
    d.pages.free(1)
    assert d.pages.num_free == d.pages.num_pages


def test_damaged_checkpoints_are_named():
    d = driver("qwen35")
    d.read(0, TOKENS["qwen35"][:5])
    data = d.checkpoint(0, 5, pages=True).to_bytes()
    flipped = bytearray(data)
    flipped[-9] ^= 1
    cases = {
        "begin with its mark": b"GGUF" + data[4:],
        "version 7": data[:8] + b"\x07" + data[9:],
        f"{len(data) - 3} bytes; its header says {len(data)}": data[:-3],
        "bytes have changed": bytes(flipped),
    }
    for message, bad in cases.items():
        with pytest.raises(ModelFileError, match=message):
            Checkpoint.from_bytes(bad)
    with pytest.raises(ModelFileError, match="the model needs"):
        driver("qwen4exp").restore(0, Checkpoint.from_bytes(data))
